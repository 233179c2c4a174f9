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
        description="queue: the newest, used once; uniform; prioritized: by absolute value errors; attentive: similar"
        " to what actors see now (AAAI-20 6049); elite: features that have changed least since acting"
    )
    share: float = Field(gt=0, le=1, description="share of the batch; those of all sources sum to 1")
    capacity: Capacity = Field(1000, ge=1, description="sequences it keeps; not for queue")
    alpha: float = Field(0.6, ge=0, le=1, description="prioritized: exponent of the priorities")
    beta: float = Field(0.4, ge=0, le=1, description="prioritized: exponent of importance weights; 1: full correction")
    features: Literal["state", "network"] = Field(
        "state",
        description="attentive: compare states (images in a fixed random embedding), or the current network's features"
        " of them; elite compares the current features with those recorded when acting",
    )
    distance: Literal["lp", "cosine", "kl"] = Field(
        "lp", description="attentive, elite: distance of features; kl: elite only, divergence of the policies"
    )
    p: Exponent = Field(2.0, ge=1, description="lp: the p")
    selection: Literal["nearest", "spread", "least_sampled", "grouped"] = Field(
        "nearest",
        description="attentive, elite: candidates to use: the nearest; evenly spaced over the ranking; the least"
        " sampled; the least sampled in each part of the ranking",
    )
    lambda_: Exponent = Field(6.0, ge=1, alias="lambda", description="attentive, elite: candidates per item")
    anneal: Magnitude | None = Field(
        2.0, gt=0, description="attentive, elite: lambda falls to 1 over so many times stop.env_steps; null: constant"
    )
    every: Steps = Field(1, ge=1, description="attentive, elite: compare only every n-th state of a sequence")
    contest: Items = Field(
        0, ge=0, description="elite: when full, evict the farthest of this many, e.g. 20; 0: the oldest"
    )

    @model_validator(mode="after")
    def _says_nothing_in_vain(self) -> SourceConfig:
        fields = SourceConfig.model_fields
        changed = [name for name, field in fields.items() if getattr(self, name) != field.default]
        vain = [fields[name].alias or name for name in changed if name not in ("kind", "share", *SETTINGS[self.kind])]
        if vain:
            raise ValueError(f"{', '.join(vain)} has no effect on a source of kind {self.kind}; leave it out")
        if self.kind == "attentive" and self.distance == "kl":
            raise ValueError("attentive compares states, which are not distributions: use distance lp or cosine")
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
    """Behavioral cloning on replayed sequences, against forgetting (CLEAR, 1811.11682)."""

    policy_cost: Weight = Field(0.01, ge=0, description="weight of KL(recorded policy || current policy)")
    value_cost: Weight = Field(0.005, ge=0, description="weight of the squared difference to the recorded value")


class LaserConfig(Part):
    """Leave out states at which the recorded policy differs too much from the current one (LASER, 1909.11583)."""

    threshold: Magnitude = Field(
        0.3, gt=0, description="largest KL(current policy || reference) at a state to learn from"
    )
    reference: Literal["implied", "behavior"] = Field(
        "implied",
        description="implied: the policy implied by clipped weights (the paper); behavior: the recorded one",
    )


class IMPALAConfig(VTraceConfig):
    """Actor-critic with actors that run ahead, corrected by V-trace; losses are summed over steps and sequences."""

    implementation: ClassVar[str] = "starling.algos.impala.impala:IMPALA"
    unroll: Length = Field(20, ge=1, description="steps per sequence")
    batch: BatchSize = Field(32, ge=1, description="sequences per update")
    max_lag: Items = Field(1, ge=0, description="batches that actors may run ahead of the learner; 0: synchronous")
    sources: list[SourceConfig] | None = Field(
        None, description="sources of a batch, each with its share; null: only the newest experience"
    )
    clear: ClearConfig | None = Field(None, description="policy and value cloning on replayed sequences; null: none")
    laser: LaserConfig | None = Field(
        None,
        description="a relevance test per state, and an entropy bonus on new sequences only, so that entropy_coef"
        " counts in proportion to their share of the batch; null: none",
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
        description="optimizer of policy and value; losses are sums, which matters for lr and clip_norm",
    )

    def algorithm_path(self) -> str:
        mixed = self.sources is not None or self.laser is not None
        return "starling.algos.impala.mixed:MixedIMPALA" if mixed else self.implementation

    @model_validator(mode="after")
    def _is_a_mixture(self) -> IMPALAConfig:
        if self.sources is not None:
            check_sources(self.sources)
        if self.clear is not None and len(self.sources or ()) < 2:
            raise ValueError("clear needs replayed sequences, but there are none: add a replay to sources")
        return self
