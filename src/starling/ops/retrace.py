"""Retrace: off-policy returns for Q (1606.02647), optionally with value rescaling (2002.06038)."""

from __future__ import annotations

import torch

from starling.ops.returns import backward_recursion
from starling.ops.shapes import check_shapes
from starling.ops.value import IDENTITY, Transform, batched_index
from starling.types import Tensor


@torch.no_grad()
def retrace(
    r_t: Tensor,
    discount_t: Tensor,
    q: Tensor,
    action_t: Tensor,
    pi: Tensor,
    mu_t: Tensor,
    valid_t: Tensor,
    *,
    lambda_t: Tensor | float = 1.0,
    transform: Transform = IDENTITY,
) -> Tensor:
    """Q targets h(G_t), G_t = r_t + discount_t (V_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1})) (1606.02647, eq. 3).

    V = sum_a pi(a) h^-1(Q(a)), and c_{t+1} = lambda_t min(1, pi / mu) at t + 1: the first step has no weight.

    Args:
        r_t: Rewards [T, B].
        discount_t: Discounts [T, B], 0 at termination.
        q: Q values [T+1, B, A] of the target network, predicted under `transform`.
        action_t: Actions [T, B], int.
        pi: Probabilities [T+1, B, A] of the target policy.
        mu_t: Recorded probabilities [T, B] of the actions that were taken.
        valid_t: bool [T, B], False on resets and padding.
        lambda_t: A number, or [T, B].
        transform: h and its inverse; the identity by default.

    Returns:
        Transformed Q targets [T, B] without gradient; Q itself on invalid steps.
    """
    check_shapes(
        "retrace",
        "T B",
        r_t=r_t,
        discount_t=discount_t,
        action_t=action_t,
        mu_t=mu_t,
        valid_t=valid_t,
        lambda_t=lambda_t,
        q=(q, "T+1 B A"),
        pi=(pi, "T+1 B A"),
    )
    raw_q = transform.inverse(q)
    v = (pi * raw_q).sum(-1)  # [T+1, B]
    q_t = batched_index(raw_q[:-1], action_t)
    rho_t = (batched_index(pi[:-1], action_t) / mu_t.clamp(min=torch.finfo(mu_t.dtype).tiny)).clamp(max=1.0)
    rho_tp1 = torch.cat([rho_t[1:], torch.zeros_like(rho_t[:1])])
    delta_t = torch.where(valid_t, r_t + discount_t * v[1:] - q_t, 0.0)
    trace_t = torch.where(valid_t, discount_t * lambda_t * rho_tp1, 0.0)
    error_t = backward_recursion(delta_t, trace_t, torch.zeros_like(delta_t[0]))  # G - Q
    return torch.where(valid_t, transform.apply(q_t + error_t), batched_index(q[:-1], action_t))
