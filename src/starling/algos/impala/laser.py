"""LASER (1909.11583): learn only from states whose recorded policy is close enough to the current one."""

from __future__ import annotations

from typing import TypeVar

from gymnasium import spaces

from starling.algos.impala.config import LaserConfig
from starling.errors import UserError
from starling.ops.distributions import Categorical, MultiCategorical
from starling.ops.relevance import implied_policy, relevant
from starling.types import EnvSpec, Tensor

D = TypeVar("D", Categorical, MultiCategorical)


def relevance(policy: D, behavior: D, clip_rho: float, laser: LaserConfig) -> Tensor:
    """Relevance mask, bool [T, B]: KL(pi || reference) is at most the threshold (section 4)."""
    if laser.reference == "behavior" or not isinstance(policy, Categorical):
        return relevant(policy, behavior, laser.threshold)
    return relevant(policy, implied_policy(policy, behavior, clip_rho), laser.threshold)


def check_actions(laser: LaserConfig, env: EnvSpec) -> None:
    """Raise `UserError` if the reference policy is not defined for the env's action space."""
    if laser.reference == "implied" and not isinstance(env.action, spaces.Discrete):
        raise UserError("algo.laser: the implied policy needs one choice per step; use algo.laser.reference=behavior")
