"""Settings of IMPACT (1912.00167)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from starling.algos.settings import VTraceConfig
from starling.config.limits import BatchSize, Items, Length, Magnitude, Passes
from starling.config.parts import Linear, LinearPositive, OptimizerConfig
from starling.config.quantities import TARGET_EVERY, UpdateInterval


class IMPACTConfig(VTraceConfig):
    """Asynchronous PPO with a target policy: each batch is used several times, with bounded ratios."""

    implementation: ClassVar[str] = "starling.algos.impact.impact:IMPACT"
    unroll: Length = Field(50, ge=1, description="steps per sequence")
    batch: BatchSize = Field(10, ge=1, description="sequences per update")
    buffer: Items = Field(4, ge=1, description="batches in the circular buffer (N), used in turn")
    max_times_sampled: Passes = Field(2, ge=1, description="updates from each batch (K)")
    queue_batches: Items = Field(1, ge=1, description="batches that actors may have ready beyond the buffer")
    target_every: UpdateInterval = Field(16, description=f"{TARGET_EVERY} (t_target)")
    clip: LinearPositive = Field(
        Linear(start=0.3, end=0.3, fraction=1.0), description="how far the policy's ratio may move from 1"
    )
    target_ratio_clip: Magnitude = Field(
        2.0, ge=1, description="rho: the ratio's denominator is max(target policy, acting policy / rho)"
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="Adam", args={"lr": 5e-4, "eps": 1e-5}, clip_norm=40.0),
        description="optimizer of policy and value; losses are means over steps and sequences",
    )
