"""V-trace: off-policy value targets and policy gradients with truncated importance weights (1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from starling.ops.returns import backward_recursion
from starling.ops.shapes import check_shapes
from starling.types import Tensor


@dataclass(frozen=True)
class VTrace:
    """Value targets and policy-gradient advantages, both without gradient.

    Attributes:
        vs: Value targets [T, B] (eq. 1); the value itself on invalid steps.
        pg_advantage: rho_t (r_t + discount_t q_{t+1} - v_t) [T, B] (section 4.2); 0 on invalid steps.
    """

    vs: Tensor
    pg_advantage: Tensor


@torch.no_grad()
def vtrace(
    log_rho_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    valid_t: Tensor,
    *,
    lambda_t: Tensor | float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    keep_t: Tensor | None = None,
    acted_t: Tensor | None = None,
) -> VTrace:
    """Compute V-trace targets and policy-gradient advantages (1802.01561, remark 1 and section 4.2).

        vs_t = v_t + delta_t + discount_t c_t (vs_{t+1} - v_tp1),  c_t = lambda_t min(clip_c, pi / mu)
        q_{t+1} = lambda_t vs_{t+1} + (1 - lambda_t) v_tp1

    The paper has lambda = 1. With lambda < 1 the advantage bootstraps from q, as in rlax, and equals GAE on-policy.

    The masks combine in this order: where `valid_t` is False there is no step, so the target is v_t, the advantage is
    0, and no trace passes, whatever the other masks are. Elsewhere, where `acted_t` is False, rho = c = 1, also if the
    step is not kept. Elsewhere, where `keep_t` is False, rho = c = 0: the target is v_t and the advantage is 0.

    Args:
        log_rho_t: log pi(a_t) - log mu(a_t) [T, B], of the current policy pi and the behavior policy mu.
        r_t: Rewards [T, B].
        discount_t: Discounts [T, B], 0 at termination.
        v_t: Values [T, B] at obs[t].
        v_tp1: Values [T, B] at obs[t+1].
        valid_t: bool [T, B], False on resets and padding.
        lambda_t: A number, or [T, B].
        clip_rho: Largest weight of a TD error; it decides which policy is evaluated.
        clip_c: Largest weight of a trace; it decides how far a target looks ahead.
        keep_t: bool [T, B]; False cuts the trace, rho = c = 0 (LASER, 1909.11583). None: keep all steps.
        acted_t: bool [T, B]; False on resets within a non-episodic stream, rho = c = 1. None: an action at every step.

    Returns:
        Value targets and advantages [T, B].
    """
    check_shapes(
        "vtrace",
        "T B",
        log_rho_t=log_rho_t,
        r_t=r_t,
        discount_t=discount_t,
        v_t=v_t,
        v_tp1=v_tp1,
        valid_t=valid_t,
        lambda_t=lambda_t,
        keep_t=keep_t,
        acted_t=acted_t,
    )
    ratio_t = log_rho_t.exp()
    rho_t = _weight(ratio_t, clip_rho, keep_t, acted_t)
    c_t = lambda_t * _weight(ratio_t, clip_c, keep_t, acted_t)
    delta_t = torch.where(valid_t, rho_t * (r_t + discount_t * v_tp1 - v_t), 0.0)
    trace_t = torch.where(valid_t, discount_t * c_t, 0.0)
    zero = torch.zeros_like(delta_t[0])
    error_t = backward_recursion(delta_t, trace_t, zero)  # vs - v
    # vs_{t+1} is v_tp1 + error_{t+1}: the last step of an episode or of the rollout bootstraps from its own v_tp1.
    q_tp1 = v_tp1 + lambda_t * torch.cat([error_t[1:], zero[None]])
    pg_advantage = torch.where(valid_t, rho_t * (r_t + discount_t * q_tp1 - v_t), 0.0)
    return VTrace(v_t + error_t, pg_advantage)


def _weight(ratio_t: Tensor, clip: float, keep_t: Tensor | None, acted_t: Tensor | None) -> Tensor:
    """min(clip, pi / mu) [T, B]; 0 if not kept, 1 if no action was taken."""
    weight_t = ratio_t.clamp(max=clip)
    if keep_t is not None:
        weight_t = torch.where(keep_t, weight_t, 0.0)
    return weight_t if acted_t is None else torch.where(acted_t, weight_t, 1.0)
