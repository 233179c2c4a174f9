"""Settings of SAC; the defaults are those for MuJoCo (1812.05905, table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from starling.algos.settings import UPDATES_PER_STEP, TransitionsConfig
from starling.config.limits import BatchSize, Capacity, Length, Signed, UpdateRate, Weight
from starling.config.nets import NetworkConfig
from starling.config.parts import OptimizerConfig


class SACConfig(TransitionsConfig):
    """Soft actor-critic: a maximum-entropy policy, two critics, and a learned temperature.

    Policy and critics share no layers, whatever `net.shared` says; `torso.hidden` is [256, 256] if it is null.
    Until the first update, actions are uniformly random.
    """

    implementation: ClassVar[str] = "starling.algos.sac.sac:SAC"
    actions: ClassVar[tuple[str, ...]] = ("Box", "Discrete")
    networks: ClassVar[Mapping[str, str]] = {"policy": "the policy", "critics": "Q values of both critics"}
    batch: BatchSize = Field(256, ge=1, description="transitions per update")
    learning_starts: Capacity = Field(10_000, ge=1, description="transitions in replay before the first update")
    fragment: Length = Field(1, ge=1, description="steps of every env between two inserts into replay")
    updates_per_step: UpdateRate | None = Field(1.0, gt=0, description=UPDATES_PER_STEP)
    tau: float = Field(0.005, gt=0, le=1, description="how far the target critics move towards the critics per update")
    temperature: Weight = Field(1.0, gt=0, description="initial alpha, the weight of the entropy")
    target_entropy: Signed | None = Field(
        None,
        description="entropy that the temperature is tuned for; null: minus the number of action dimensions,"
        " or 0.98 of the maximum for discrete actions (1910.07207)",
    )
    actor_optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 3e-4}), description="optimizer of the policy"
    )
    critic_optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 3e-4}), description="optimizer of the critics"
    )
    temperature_optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 3e-4}), description="optimizer of the log temperature"
    )

    def check_networks(self, nets: Mapping[str, NetworkConfig], streams: Sequence[str]) -> None:
        super().check_networks(nets, streams)
        for name, network in nets.items():
            if network.share is not None:
                raise ValueError(f"nets.{name}.share: policy and critics of {self.name} share no layers; leave it out")
        if nets["critics"].head is not None:
            raise ValueError("nets.critics.head has no effect: critics' layers are those of nets.critics.torso")
