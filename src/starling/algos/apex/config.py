"""Settings of Ape-X; the defaults are those for Atari (1803.00933, appendix C and D)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from starling.algos.dqn.config import DQNConfig
from starling.algos.settings import UPDATES_PER_STEP, PrioritizedConfig
from starling.config.limits import BatchSize, Capacity, Exponent, Length, UpdateRate
from starling.config.parts import Linear, LinearUnit, OptimizerConfig


class ApeXConfig(DQNConfig):
    """Deep Q-learning from many actors, with per-env epsilons and initial priorities computed by the actors."""

    implementation: ClassVar[str] = "starling.algos.apex.apex:ApeX"
    double: bool = Field(
        True, description="choose the next action online, value it with the target network (1509.06461)"
    )
    dueling: bool = Field(
        True, description="Q as a state value and advantages, each with its own hidden layers (1511.06581)"
    )
    n_step: Length = Field(3, ge=1, description="rewards summed before the bootstrap")
    prioritized: PrioritizedConfig | None = Field(
        PrioritizedConfig(alpha=0.6, beta=Linear(start=0.4, end=0.4, fraction=1.0)),
        description="prioritized replay, with initial priorities by the actors; null: uniform",
    )
    batch: BatchSize = Field(512, ge=1, description="transitions per update")
    capacity: Capacity = Field(2_000_000, ge=1, description="env steps kept in replay, over all envs")
    fragment: Length = Field(100, ge=1, description="steps of every env between two inserts and two reads of weights")
    updates_per_step: UpdateRate | None = Field(
        0.0015, gt=0, description=f"{UPDATES_PER_STEP}; the paper's system had 19 in 12,500"
    )
    epsilon: LinearUnit = Field(
        Linear(start=0.4, end=0.4, fraction=1.0),
        description="training epsilon of the first env; env i of N has epsilon^(1 + ladder i / (N - 1))",
    )
    ladder: Exponent = Field(7.0, ge=0, description="how much less the last env explores; 0: all alike")
    eval_epsilon: float = Field(0.0, ge=0, le=1, description="epsilon when evaluating")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(
            name="RMSpropTF",
            args={"lr": 6.25e-5, "alpha": 0.95, "eps": 1.5e-7, "centered": True},
            clip_norm=40.0,
        ),
        description="optimizer of the Q network",
    )
