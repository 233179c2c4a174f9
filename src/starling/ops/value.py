"""Building blocks of Q-learning: value rescaling, values of actions, n-step targets, TD errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import huber_loss

from starling.ops.returns import n_step_return
from starling.ops.shapes import check_shapes
from starling.types import Tensor


def h(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Value rescaling sign(x) (sqrt(|x| + 1) - 1) + eps x (1805.11593), computed without cancellation near 0."""
    return x * (1.0 / (torch.sqrt(x.abs() + 1.0) + 1.0) + eps)


def h_inverse(x: Tensor, eps: float = 1e-3) -> Tensor:
    """The exact inverse of `h`.

    With u = sqrt(|y| + 1) - 1, |h(y)| = eps u^2 + (1 + 2 eps) u. The root u is computed without a subtraction, because
    the textbook form loses all digits in float32. Then |y| = u (u + 2).
    """
    b = 1.0 + 2.0 * eps
    u = 2.0 * x / (b + torch.sqrt(b * b + 4.0 * eps * x.abs()))  # has the sign of x
    return u * (u.abs() + 2.0)


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Transform:
    """A value transform and its inverse; networks predict `apply(value)`."""

    apply: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


IDENTITY = Transform(_same, _same)
RESCALED = Transform(h, h_inverse)


def batched_index(q: Tensor, action: Tensor) -> Tensor:
    """q(action) [...], from q [..., A] and action [...] int."""
    check_shapes("batched_index", q=(q, "... A"), action=(action, "..."))
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def n_step_target(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    n: int,
    valid_t: Tensor,
    transform: Transform = IDENTITY,
) -> Tensor:
    """Transformed n-step targets h(r_t + ... + discount^n h^-1(v_{t+n})), for values predicted under a transform h.

    Args:
        r_t: Rewards [T, B], not transformed.
        discount_t: Discounts [T, B], 0 at termination.
        v_t: Transformed values [T, B] at obs[t]; the targets of invalid steps.
        v_tp1: Transformed values [T, B] at obs[t+1].
        n: Number of rewards before the bootstrap, at least 1.
        valid_t: bool [T, B], False on resets and padding.
        transform: h and its inverse; the identity by default.

    Returns:
        Transformed targets [T, B] without gradient; v_t on invalid steps.
    """
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
