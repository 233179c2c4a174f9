"""Settings of IMPALA; the defaults are those for Atari (1802.01561, appendix D)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from starling.config.algo.base import AlgoConfig
from starling.config.parts import OptimizerConfig, ScheduleConfig


class IMPALAConfig(AlgoConfig):
    """Actors that run ahead of the learner, corrected by V-trace; losses are summed over steps and rows."""

    implementation: ClassVar[str] = "starling.algos.impala:IMPALA"
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete")
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    trace_lambda: float = Field(1.0, ge=0, le=1, description="lambda of V-trace (remark 2); 1: to the unroll's end")
    clip_rho: float = Field(1.0, gt=0, description="largest importance weight of a step: which policy is valued")
    clip_c: float = Field(1.0, ge=0, description="largest importance weight of a trace: how far a value looks ahead")
    unroll: int = Field(20, ge=1, description="steps every env takes for one item of a batch")
    batch: int = Field(32, ge=1, description="unrolls an update")
    max_lag: int = Field(1, ge=0, description="batches that actors may run ahead of the learner; 0: synchronous")
    value_coef: float = Field(0.5, ge=0, description="weight of the value loss, half the squared error")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(
            name="RMSprop",
            args={"lr": 6e-4, "alpha": 0.99, "eps": 0.01},
            clip_norm=40.0,
            schedule=ScheduleConfig(
                name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"}
            ),
        ),
        description="optimizer of policy and value; a sum of losses wants its own learning rate and clip_norm",
    )
