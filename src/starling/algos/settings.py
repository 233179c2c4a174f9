"""Settings that several algorithms share; like every `config.py` beside an algorithm, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from starling.config.algorithms import AlgoConfig
from starling.config.limits import Capacity, Length, Magnitude, Weight
from starling.config.parts import Linear, LinearUnit, Part

UPDATES_PER_STEP = "updates allowed per env step; null: as many as the learner can, envs and learner wait for nobody"
"""Description of the ratio of replay algorithms."""


class PrioritizedConfig(Part):
    """Prioritized replay (1511.05952)."""

    alpha: float = Field(0.6, ge=0, le=1, description="exponent of the priorities; 0 is uniform")
    beta: LinearUnit = Field(
        Linear(start=0.4, end=1.0, fraction=1.0), description="exponent of importance weights; 1 is a full correction"
    )


class TransitionsConfig(AlgoConfig):
    """Base class of the settings of algorithms that learn values from replayed transitions."""

    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    n_step: Length = Field(1, ge=1, description="rewards summed before the bootstrap")
    prioritized: PrioritizedConfig | None = Field(None, description="prioritized replay; null: uniform")
    capacity: Capacity = Field(1_000_000, ge=1, description="env steps kept in replay, over all envs")
    codec: Literal["none", "zstd"] = Field(
        "none", description="compression of observations in replay; zstd takes a small fraction of the memory"
    )


class VTraceConfig(AlgoConfig):
    """Base class of the settings of asynchronous actor-critics with V-trace."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete")
    networks: ClassVar[Mapping[str, str]] = {
        "policy": "the policy",
        "value": "state values, one head per reward stream",
    }
    stream_network: ClassVar[str | None] = "value"
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    trace_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of V-trace (1802.01561, remark 2); 1: to the end of the sequence"
    )
    clip_rho: Magnitude = Field(
        1.0, gt=0, description="largest importance weight of a step, which sets the policy that is valued"
    )
    clip_c: Magnitude = Field(
        1.0, ge=0, description="largest importance weight of a trace, which limits how far a value looks ahead"
    )
    value_coef: Weight = Field(0.5, ge=0, description="weight of the value loss, half the squared error")
    entropy_coef: Weight = Field(0.01, ge=0, description="weight of the entropy bonus")
