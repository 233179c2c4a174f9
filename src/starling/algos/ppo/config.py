"""Settings of PPO; the defaults are those in use for Atari (1707.06347 has 3 epochs and a value coefficient of 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from starling.config.algorithms import AlgoConfig
from starling.config.limits import Items, Length, LogStd, Magnitude, Minibatches, NumEnvs, Passes, Weight, check_passes
from starling.config.parts import Linear, LinearPositive, OptimizerConfig, ScheduleConfig


class PPOConfig(AlgoConfig):
    """Proximal policy optimization with generalized advantage estimation."""

    implementation: ClassVar[str] = "starling.algos.ppo.ppo:PPO"
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "Box")
    networks: ClassVar[Mapping[str, str]] = {
        "policy": "the policy",
        "value": "state values, one head per reward stream",
    }
    stream_network: ClassVar[str | None] = "value"
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of the advantage estimate (1506.02438)")
    rollout: Length = Field(128, ge=1, description="steps of every env in one batch")
    batch_envs: NumEnvs | None = Field(None, ge=1, description="envs in one batch; null: all of env.num")
    max_lag: Items = Field(
        0, ge=0, description="batches that actors may run ahead, corrected by V-trace (1802.01561); 0: synchronous"
    )
    epochs: Passes = Field(4, ge=1, description="passes over a batch")
    minibatches: Minibatches = Field(4, ge=1, description="parts of a batch, one optimizer step each")
    clip: LinearPositive = Field(
        Linear(start=0.1, end=0.1, fraction=1.0), description="how far the policy's ratio may move from 1"
    )
    value_clip: Magnitude | None = Field(
        None, gt=0, description="how far a value may move from the recorded one; null: not limited"
    )
    value_coef: Weight = Field(0.5, ge=0, description="weight of the value loss, half the squared error")
    entropy_coef: Weight = Field(0.01, ge=0, description="weight of the entropy bonus")
    normalize_advantages: bool = Field(True, description="to mean 0 and std 1 in every minibatch")
    policy: Literal["auto", "gaussian"] = Field(
        "auto", description="auto: by the action space; gaussian: a normal distribution, for Box only"
    )
    log_std: LogStd = Field(0.0, description="gaussian: initial log std, in the policy's units of [-1, 1]")
    normalize_observations: bool = Field(
        False, description="vectors of floats to mean 0 and std 1, by statistics that are part of the agent"
    )
    normalize_rewards: bool = Field(False, description="rewards divided by the std of their discounted return")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(
            name="Adam",
            args={"lr": 2.5e-4, "eps": 1e-5},
            clip_norm=0.5,
            schedule=ScheduleConfig(
                name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"}
            ),
        ),
        description="optimizer of policy and value",
    )

    @model_validator(mode="after")
    def _updates_end(self) -> PPOConfig:
        check_passes(self.epochs, self.minibatches)
        return self
