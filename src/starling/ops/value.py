"""Building blocks of Q-learning: bootstrap values, targets under a rescaling, errors."""

from __future__ import annotations

import torch
from torch.nn.functional import huber_loss

from starling.ops.returns import n_step_return, window_return
from starling.ops.shapes import check_shapes
from starling.ops.transforms import IDENTITY, Transform
from starling.types import Tensor


def take(q: Tensor, action: Tensor) -> Tensor:
    """q(action) [...], from q [..., A] and action [...] int."""
    check_shapes("take", q=(q, "... A"), action=(action, "..."))
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def q_target_value(q_target_tp1: Tensor) -> Tensor:
    """The bootstrap of Q-learning: max_a q(a) [...], from [..., A]."""
    return q_target_tp1.amax(-1)


@torch.no_grad()
def double_q_value(q_online_tp1: Tensor, q_target_tp1: Tensor) -> Tensor:
    """The bootstrap of Double Q-learning (1509.06461): the online net chooses, the target net values; [...]."""
    check_shapes("double_q_value", q_online_tp1=(q_online_tp1, "... A"), q_target_tp1=(q_target_tp1, "... A"))
    return q_target_tp1.gather(-1, q_online_tp1.argmax(-1, keepdim=True)).squeeze(-1)


@torch.no_grad()
def td_target(r_t: Tensor, discount_t: Tensor, v_tp1: Tensor, transform: Transform = IDENTITY) -> Tensor:
    """The one-step target h(r_t + discount_t h^-1(v_tp1)); all [...]."""
    check_shapes("td_target", r_t=(r_t, "..."), discount_t=(discount_t, "..."), v_tp1=(v_tp1, "..."))
    return transform.apply(r_t + discount_t * transform.inverse(v_tp1))


@torch.no_grad()
def n_step_target(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_t: Tensor,  # [T, B] inside the transform: the targets of invalid rows
    v_tp1: Tensor,  # [T, B] inside the transform
    n: int,
    valid_t: Tensor,  # [T, B] bool
    transform: Transform = IDENTITY,
) -> Tensor:  # [T, B]
    """`n_step_return` for values inside a transform: rewards and bootstraps outside h, the target inside."""
    inverse = transform.inverse
    return_t = n_step_return(r_t, discount_t, inverse(v_t), inverse(v_tp1), n, valid_t)
    return torch.where(valid_t, transform.apply(return_t), v_t)


@torch.no_grad()
def window_target(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_last: Tensor,  # [B] inside the transform
    valid_t: Tensor,  # [T, B] bool
    transform: Transform = IDENTITY,
) -> Tensor:  # [B]
    """`window_return` for values inside a transform: rewards and bootstraps outside h, the target inside."""
    return transform.apply(window_return(r_t, discount_t, transform.inverse(v_last), valid_t))


def td_error(v_t: Tensor, target_t: Tensor, valid_t: Tensor) -> Tensor:
    """target - v [...], 0 on invalid rows; the gradient flows into v alone."""
    check_shapes("td_error", v_t=(v_t, "..."), target_t=(target_t, "..."), valid_t=(valid_t, "..."))
    return torch.where(valid_t, target_t.detach() - v_t, 0.0)


def q_error(
    q_t: Tensor,  # [..., A]
    action_t: Tensor,  # [...] int
    r_t: Tensor,  # [...]
    discount_t: Tensor,  # [...]
    q_target_tp1: Tensor,  # [..., A]
    transform: Transform = IDENTITY,
) -> Tensor:  # [...]
    """The one-step error of Q-learning (Mnih 2015); the gradient flows into q_t alone."""
    return td_target(r_t, discount_t, q_target_value(q_target_tp1), transform) - take(q_t, action_t)


def double_q_error(
    q_t: Tensor,  # [..., A]
    action_t: Tensor,  # [...] int
    r_t: Tensor,  # [...]
    discount_t: Tensor,  # [...]
    q_online_tp1: Tensor,  # [..., A]
    q_target_tp1: Tensor,  # [..., A]
    transform: Transform = IDENTITY,
) -> Tensor:  # [...]
    """The one-step error of Double Q-learning (1509.06461); the gradient flows into q_t alone."""
    return td_target(r_t, discount_t, double_q_value(q_online_tp1, q_target_tp1), transform) - take(q_t, action_t)


def huber(x: Tensor, delta: float = 1.0) -> Tensor:
    """x^2 / 2 up to |x| = delta, then a line of slope delta; [...]."""
    return huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)
