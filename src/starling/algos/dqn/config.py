"""Settings of DQN; the defaults are Mnih 2015 with Rainbow's Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from starling.algos.settings import UPDATES_PER_STEP, TransitionsConfig
from starling.config.bandits import EpsilonBanditConfig
from starling.config.limits import BatchSize, Capacity, Length, Magnitude, UpdateRate, Width
from starling.config.parts import Linear, LinearUnit, OptimizerConfig
from starling.config.quantities import TARGET_EVERY, UpdateInterval


class DQNConfig(TransitionsConfig):
    """Deep Q-learning; double, dueling, n-step, and prioritized replay are one setting each."""

    implementation: ClassVar[str] = "starling.algos.dqn.dqn:DQN"
    actions: ClassVar[tuple[str, ...]] = ("Discrete",)
    networks: ClassVar[Mapping[str, str]] = {"q": "Q values, one head per reward stream"}
    stream_network: ClassVar[str | None] = "q"
    double: bool = Field(
        False, description="choose the next action online, value it with the target network (1509.06461)"
    )
    dueling: bool = Field(
        False, description="Q as a state value and advantages, each with its own hidden layers (1511.06581)"
    )
    dueling_hidden: list[Width] = Field(
        [512],
        description="widths of these hidden layers; []: none, which equals a plain Q head. The paper has them"
        " right after the convolutions: net.torso.hidden=[]",
    )
    retrace: float | None = Field(
        None,
        ge=0,
        le=1,
        description="lambda of Retrace (1606.02647) over the n_step steps, for the policy of eval_epsilon; null: n-step"
        " returns, whoever acted",
    )
    batch: BatchSize = Field(32, ge=1, description="transitions per update")
    learning_starts: Capacity = Field(50_000, ge=1, description="transitions in replay before the first update")
    fragment: Length = Field(4, ge=1, description="steps of every env between two inserts into replay")
    updates_per_step: UpdateRate | None = Field(0.25, gt=0, description=UPDATES_PER_STEP)
    target_every: UpdateInterval = Field(2_500, description=TARGET_EVERY)
    epsilon: LinearUnit = Field(Linear(start=1.0, end=0.01, steps=1_000_000), description="epsilon when training")
    epsilon_bandit: EpsilonBanditConfig | None = Field(
        None,
        description="bandits choose the epsilon of each env's episode by its recent returns (2003.13350); null: epsilon"
        " is that of the env",
    )
    eval_epsilon: float = Field(0.01, ge=0, le=1, description="epsilon when evaluating")
    huber: Magnitude = Field(1.0, gt=0, description="error at which the loss turns from quadratic to linear")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 6.25e-5, "eps": 1.5e-4}, clip_norm=10.0),
        description="optimizer of the Q network",
    )
