"""Building blocks of Q-learning: values of actions, rescaled targets, TD errors."""

from __future__ import annotations

import torch
from torch.nn.functional import huber_loss

from starling.ops.returns import n_step_return
from starling.ops.shapes import check_shapes
from starling.ops.transforms import IDENTITY, Transform
from starling.types import Tensor


def take(q: Tensor, action: Tensor) -> Tensor:
    """q(action) [...], from q [..., A] and action [...] int."""
    check_shapes("take", q=(q, "... A"), action=(action, "..."))
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def n_step_target(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_t: Tensor,  # [T, B] transformed; the targets of invalid steps
    v_tp1: Tensor,  # [T, B] transformed
    n: int,
    valid_t: Tensor,  # [T, B] bool
    transform: Transform = IDENTITY,
) -> Tensor:  # [T, B]
    """Transformed n-step targets h(r_t + ... + discount^n h^-1(v_{t+n})), for values predicted under a transform h."""
    inverse = transform.inverse
    return_t = n_step_return(r_t, discount_t, inverse(v_t), inverse(v_tp1), n, valid_t)
    return torch.where(valid_t, transform.apply(return_t), v_t)


def td_error(v_t: Tensor, target_t: Tensor, valid_t: Tensor) -> Tensor:
    """target - v [...], 0 on invalid steps; the gradient flows into v only."""
    check_shapes("td_error", "...", v_t=v_t, target_t=target_t, valid_t=valid_t)
    return torch.where(valid_t, target_t.detach() - v_t, 0.0)


def huber(x: Tensor, delta: float = 1.0) -> Tensor:
    """Huber loss [...]: x^2 / 2 if |x| <= delta, else delta (|x| - delta / 2)."""
    return huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)
