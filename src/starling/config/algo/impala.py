"""Settings of IMPALA; the defaults are those for Atari (1802.01561, appendix D)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from starling.config.algo.sources import SourceConfig, check_sources
from starling.config.algo.vtrace import VTraceConfig
from starling.config.limits import BatchSize, Items, Length, Magnitude, Weight
from starling.config.parts import OptimizerConfig, Part, ScheduleConfig


class ClearConfig(Part):
    """Cloning of what replayed unrolls recorded, against forgetting (CLEAR, 1811.11682)."""

    policy_cost: Weight = Field(0.01, ge=0, description="weight of KL(recorded policy || present policy)")
    value_cost: Weight = Field(0.005, ge=0, description="weight of the squared difference to the recorded value")


class LaserConfig(Part):
    """States whose recorded policy says too little about the present one are left out (LASER, 1909.11583)."""

    threshold: Magnitude = Field(
        0.3, gt=0, description="largest KL(present policy || reference) at a state to learn from"
    )
    reference: Literal["implied", "behaviour"] = Field(
        "implied",
        description="implied: the policy that clipped weights stand for (the paper); behaviour: the one recorded",
    )


class IMPALAConfig(VTraceConfig):
    """Actors that run ahead of the learner, corrected by V-trace; losses are summed over steps and rows."""

    implementation: ClassVar[str] = "starling.algos.impala:IMPALA"
    unroll: Length = Field(20, ge=1, description="steps every env takes for one item of a batch")
    batch: BatchSize = Field(32, ge=1, description="unrolls an update")
    max_lag: Items = Field(1, ge=0, description="batches that actors may run ahead of the learner; 0: synchronous")
    sources: list[SourceConfig] | None = Field(
        None, description="what a batch is mixed from, each by its share; null: the newest alone"
    )
    clear: ClearConfig | None = Field(None, description="policy and value cloning on replayed unrolls; null: none")
    laser: LaserConfig | None = Field(
        None,
        description="a test of every state's relevance, and an entropy bonus on new unrolls only, so that entropy_coef"
        " counts by their share of the batch; null: none",
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(
            name="RMSpropTF",
            args={"lr": 6e-4, "alpha": 0.99, "eps": 0.01},
            clip_norm=40.0,
            schedule=ScheduleConfig(
                name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"}
            ),
        ),
        description="optimizer of policy and value; a sum of losses wants its own learning rate and clip_norm",
    )

    @model_validator(mode="after")
    def _is_a_mixture(self) -> IMPALAConfig:
        if self.sources is not None:
            check_sources(self.sources)
        if self.clear is not None and len(self.sources or ()) < 2:
            raise ValueError(
                "clear clones replayed unrolls, but there are none: give sources a replay beside the queue"
            )
        return self
