"""Settings of PQN; the defaults are those for MinAtar (2407.04811, appendix)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from starling.config.algorithms import AlgoConfig
from starling.config.limits import Length, Magnitude, Minibatches, Passes, check_passes
from starling.config.parts import Linear, LinearUnit, OptimizerConfig, ScheduleConfig


class PQNConfig(AlgoConfig):
    """Q-learning from parallel envs without replay or a target network; set net.torso.norm=layer."""

    implementation: ClassVar[str] = "starling.algos.pqn.pqn:PQN"
    actions: ClassVar[tuple[str, ...]] = ("Discrete",)
    networks: ClassVar[Mapping[str, str]] = {"q": "Q values, one head per reward stream"}
    stream_network: ClassVar[str | None] = "q"
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    q_lambda: float = Field(0.65, ge=0, le=1, description="lambda of the returns; 0: one-step targets")
    retrace: float | None = Field(
        None, ge=0, le=1, description="lambda of Retrace (1606.02647), instead of q_lambda; null: Q(lambda)"
    )
    rollout: Length = Field(32, ge=1, description="steps of every env in one batch")
    epochs: Passes = Field(2, ge=1, description="passes over a batch")
    minibatches: Minibatches = Field(32, ge=1, description="parts of a batch, one optimizer step each")
    epsilon: LinearUnit = Field(Linear(start=1.0, end=0.05, fraction=0.1), description="epsilon when training")
    eval_epsilon: float = Field(0.0, ge=0, le=1, description="epsilon when evaluating")
    huber: Magnitude | None = Field(
        None, gt=0, description="error at which the loss turns from quadratic to linear; null: quadratic everywhere"
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(
            name="RAdam",
            args={"lr": 5e-4},
            clip_norm=10.0,
            schedule=ScheduleConfig(
                name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"}
            ),
        ),
        description="optimizer of the Q network",
    )

    @model_validator(mode="after")
    def _updates_end(self) -> PQNConfig:
        check_passes(self.epochs, self.minibatches)
        return self
