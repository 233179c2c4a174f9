"""Settings of IMPALA, CLEAR, LASER, and mixed batches; the defaults are IMPALA's for Atari (1802.01561, appendix D)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from starling.algos.settings import VTraceConfig
from starling.config.limits import BatchSize, Capacity, Exponent, Items, Length, Magnitude, Steps, Weight
from starling.config.parts import OptimizerConfig, Part, ScheduleConfig

ANY_REPLAY = ("capacity",)
RANKED = (*ANY_REPLAY, "distance", "p", "selection", "lambda_", "anneal", "every")
SETTINGS: dict[str, tuple[str, ...]] = {
    "queue": (),
    "uniform": ANY_REPLAY,
    "prioritized": (*ANY_REPLAY, "alpha", "beta"),
    "attentive": (*RANKED, "features"),
    "elite": (*RANKED, "contest"),
}
"""The settings of each kind besides its share."""


class SourceConfig(Part):
    """One source of a batch: its kind, its share, and how items are chosen from it."""

    model_config = ConfigDict(populate_by_name=True)
    kind: Literal["queue", "uniform", "prioritized", "attentive", "elite"] = Field(
        description="queue: the newest, used once; uniform; prioritized: by the size of value errors; attentive: like"
        " what actors see now (AAAI-20 6049); elite: what the present network sees as the acting one did"
    )
    share: float = Field(gt=0, le=1, description="share of the batch; those of all sources sum to 1")
    capacity: Capacity = Field(1000, ge=1, description="unrolls it keeps; not for queue")
    alpha: float = Field(0.6, ge=0, le=1, description="prioritized: how far priorities shape sampling")
    beta: float = Field(0.4, ge=0, le=1, description="prioritized: importance correction; 1 is a full correction")
    features: Literal["state", "network"] = Field(
        "state",
        description="attentive: what is compared: states (images through a fixed random embedding), or what the present"
        " network makes of them; elite compares the network's features with those it had when acting",
    )
    distance: Literal["lp", "cosine", "kl"] = Field(
        "lp", description="attentive, elite: how far apart features are; kl: elite alone, the policies' divergence"
    )
    p: Exponent = Field(2.0, ge=1, description="lp: the p")
    selection: Literal["nearest", "spread", "least_sampled", "grouped"] = Field(
        "nearest",
        description="attentive, elite: which candidates: the nearest; evenly spaced over the ranking; those sampled"
        " least; the least sampled of every part of the ranking",
    )
    lambda_: Exponent = Field(6.0, ge=1, alias="lambda", description="attentive, elite: candidates for every item")
    anneal: Magnitude | None = Field(
        2.0, gt=0, description="attentive, elite: lambda falls to 1 over so many times stop.env_steps; null: it stays"
    )
    every: Steps = Field(1, ge=1, description="attentive, elite: compare only every n-th state of an unroll")
    contest: Items = Field(
        0, ge=0, description="elite: when full, the farthest of so many gives way (20 is a handful); 0: the oldest does"
    )

    @model_validator(mode="after")
    def _says_nothing_in_vain(self) -> SourceConfig:
        fields = SourceConfig.model_fields
        changed = [name for name, field in fields.items() if getattr(self, name) != field.default]
        vain = [fields[name].alias or name for name in changed if name not in ("kind", "share", *SETTINGS[self.kind])]
        if vain:
            raise ValueError(f"{', '.join(vain)} means nothing to a source of kind {self.kind}; leave it out")
        if self.kind == "attentive" and self.distance == "kl":
            raise ValueError("attentive compares states, which are no distributions: use distance lp or cosine")
        return self


def check_sources(sources: Sequence[SourceConfig]) -> None:
    """Raise ValueError unless the shares sum to 1 and exactly one source is a queue, which sets the pace."""
    total = sum(source.share for source in sources)
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"sources: the shares must sum to 1, not {total:g}")
    kinds = [source.kind for source in sources]
    if kinds.count("queue") != 1:
        raise ValueError(f"sources: exactly one must be a queue, which sets the pace; there are {kinds.count('queue')}")
    if kinds.count("prioritized") > 1:
        raise ValueError("sources: only one can be prioritized")


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

    implementation: ClassVar[str] = "starling.algos.impala.impala:IMPALA"
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

    def algorithm_path(self) -> str:
        mixed = self.sources is not None or self.laser is not None
        return "starling.algos.impala.mixed:MixedIMPALA" if mixed else self.implementation

    @model_validator(mode="after")
    def _is_a_mixture(self) -> IMPALAConfig:
        if self.sources is not None:
            check_sources(self.sources)
        if self.clear is not None and len(self.sources or ()) < 2:
            raise ValueError(
                "clear clones replayed unrolls, but there are none: give sources a replay beside the queue"
            )
        return self
