"""Settings of asynchronous actor-critics: V-trace and the coefficients of the loss."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from starling.config.algo.base import AlgoConfig
from starling.config.limits import Magnitude, Weight


class VTraceConfig(AlgoConfig):
    """Base class of the settings of asynchronous actor-critics with V-trace."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete")
    discount: float = Field(0.99, ge=0, lt=1, description="gamma")
    trace_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of V-trace (1802.01561, remark 2); 1: to the unroll's end"
    )
    clip_rho: Magnitude = Field(1.0, gt=0, description="largest importance weight of a step: which policy is valued")
    clip_c: Magnitude = Field(
        1.0, ge=0, description="largest importance weight of a trace: how far a value looks ahead"
    )
    value_coef: Weight = Field(0.5, ge=0, description="weight of the value loss, half the squared error")
    entropy_coef: Weight = Field(0.01, ge=0, description="weight of the entropy bonus")
