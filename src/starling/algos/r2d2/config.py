"""Settings of R2D2; the defaults are those for Atari (Kapturowski 2019, table 2)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from starling.algos.apex.config import ApeXConfig
from starling.algos.settings import UPDATES_PER_STEP, PrioritizedConfig
from starling.config.limits import BatchSize, Capacity, Length, UpdateRate
from starling.config.parts import Linear, OptimizerConfig


class R2D2Config(ApeXConfig):
    """Recurrent Ape-X: replayed sequences with stored recurrent states, and burn-in."""

    implementation: ClassVar[str] = "starling.algos.r2d2.r2d2:R2D2"
    discount: float = Field(0.997, ge=0, lt=1, description="gamma")
    n_step: Length = Field(5, ge=1, description="rewards summed before the bootstrap, fewer at a sequence's end")
    burn_in: Length = Field(
        40,
        ge=0,
        description="steps before the trained ones that only warm up the recurrent state; a sequence that"
        " begins an episode needs none and is trained on from its first step",
    )
    unroll: Length = Field(80, ge=1, description="trained steps of a sequence, after its burn-in")
    period: Length = Field(40, ge=1, description="steps between the starts of consecutive sequences of an episode")
    state: Literal["stored", "zero"] = Field(
        "stored", description="initial recurrent state of a sequence: as recorded when acting, or zero"
    )
    rescale: bool = Field(True, description="networks predict h(value) (1805.11593) instead of clipping rewards")
    retrace: float | None = Field(
        None,
        ge=0,
        le=1,
        description="lambda of Retrace (1606.02647), instead of n_step, for the policy of eval_epsilon; null: n-step",
    )
    eta: float = Field(0.9, ge=0, le=1, description="priority of a sequence: eta * max error + (1 - eta) * mean error")
    delta_q: bool = Field(
        True,
        description="report delta-Q, the drift of recurrent states since they were recorded; keeps the core's"
        " output of every step in replay, 4 bytes times net.core.size",
    )
    prioritized: PrioritizedConfig | None = Field(
        PrioritizedConfig(alpha=0.9, beta=Linear(start=0.6, end=0.6, fraction=1.0)),
        description="prioritized replay, with initial priorities by the actors; null: uniform",
    )
    batch: BatchSize = Field(64, ge=1, description="sequences per update")
    capacity: Capacity = Field(4_000_000, ge=1, description="env steps kept in replay, over all envs")
    learning_starts: Capacity = Field(1_250, ge=1, description="sequences in replay before the first update")
    fragment: Length = Field(40, ge=1, description="steps of every env between two inserts and two reads of weights")
    updates_per_step: UpdateRate | None = Field(
        0.0001, gt=0, description=f"{UPDATES_PER_STEP}; the paper's system had 5 in 66,000"
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 1e-4, "eps": 1e-3}, clip_norm=40.0),
        description="optimizer of the Q network; losses are summed over a sequence's steps",
    )

    @model_validator(mode="after")
    def _leaves_nothing_out(self) -> R2D2Config:
        if self.period > self.unroll:
            raise ValueError(f"period={self.period} would skip steps; set it to at most unroll={self.unroll}")
        return self
