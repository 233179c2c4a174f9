"""Returns and advantages of sequences that may contain several episodes.

Step t goes from obs[t] to obs[t+1]; `discount_t` is already 0 at termination. The step after the end of an episode is
a reset and invalid: its obs is the final observation. There, delta and trace are 0 and the target is the value itself,
so a truncated episode bootstraps from V(final obs) and nothing leaks from the next episode.
"""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor


def backward_recursion(base_t: Tensor, weight_t: Tensor, x_last: Tensor) -> Tensor:
    """Solve x_t = base_t + weight_t x_{t+1} backward from x_T = x_last, with one op per step."""
    # base_t, weight_t: [T, B]; x_last: [B]; returns [T, B]
    x, xs = x_last, []
    for base, weight in zip(reversed(base_t.unbind()), reversed(weight_t.unbind()), strict=True):
        x = torch.addcmul(base, weight, x)
        xs.append(x)
    return torch.stack(xs[::-1])


@torch.no_grad()
def gae(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_t: Tensor,  # [T, B] values at obs[t]
    v_tp1: Tensor,  # [T, B] values at obs[t+1]
    lambda_t: Tensor | float,  # [T, B]
    valid_t: Tensor,  # [T, B] bool
) -> Tensor:  # [T, B]
    """Generalized advantage estimates (1506.02438, eq. 16), 0 on invalid steps."""
    check_shapes("gae", "T B", r_t=r_t, discount_t=discount_t, v_t=v_t, v_tp1=v_tp1, lambda_t=lambda_t, valid_t=valid_t)
    delta_t = torch.where(valid_t, r_t + discount_t * v_tp1 - v_t, 0.0)
    trace_t = torch.where(valid_t, discount_t * lambda_t, 0.0)
    return backward_recursion(delta_t, trace_t, torch.zeros_like(delta_t[0]))


@torch.no_grad()
def lambda_return(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_t: Tensor,  # [T, B] values at obs[t]; the targets of invalid steps
    v_tp1: Tensor,  # [T, B] values at obs[t+1]
    lambda_t: Tensor | float,  # [T, B]
    valid_t: Tensor,  # [T, B] bool
) -> Tensor:  # [T, B]
    """G_t = r_t + discount_t ((1 - lambda_t) v_tp1 + lambda_t G_{t+1}) (Sutton and Barto, eq. 12.18)."""
    check_shapes(
        "lambda_return", "T B", r_t=r_t, discount_t=discount_t, v_t=v_t, v_tp1=v_tp1, lambda_t=lambda_t, valid_t=valid_t
    )
    goes_on_t = torch.cat([valid_t[1:], torch.zeros_like(valid_t[:1])])
    weight_t = torch.where(goes_on_t, discount_t * lambda_t, 0.0)
    base_t = torch.where(valid_t, r_t + (discount_t - weight_t) * v_tp1, 0.0)
    return_t = backward_recursion(base_t, weight_t, torch.zeros_like(base_t[0]))
    return torch.where(valid_t, return_t, v_t)


@torch.no_grad()
def n_step_return(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_t: Tensor,  # [T, B] values at obs[t]; the targets of invalid steps
    v_tp1: Tensor,  # [T, B] values at obs[t+1]
    n: int,
    valid_t: Tensor,  # [T, B] bool
) -> Tensor:  # [T, B]
    """n-step returns for every t, with fewer steps if the sequence or the episode ends before."""
    check_shapes("n_step_return", "T B", r_t=r_t, discount_t=discount_t, v_t=v_t, v_tp1=v_tp1, valid_t=valid_t)
    if n < 1:
        raise ValueError(f"n_step_return: n must be at least 1, not {n}")
    one_step_t = r_t + discount_t * v_tp1
    return_t = one_step_t
    for _ in range(min(n, len(r_t)) - 1):
        next_t = torch.where(valid_t[1:], return_t[1:], v_tp1[:-1])
        return_t = torch.cat([torch.addcmul(r_t[:-1], discount_t[:-1], next_t), one_step_t[-1:]])
    return torch.where(valid_t, return_t, v_t)


@torch.no_grad()
def window_return(
    r_t: Tensor,  # [T, B]
    discount_t: Tensor,  # [T, B]
    v_last: Tensor,  # [B] value at obs[T]
    valid_t: Tensor,  # [T, B] bool
) -> Tensor:  # [B]
    """Return of a whole sequence: discounted rewards plus the discounted value of the last observation.

    A sequence lies within one episode, and its padding repeats the final observation, so `v_last` follows the last
    valid step.
    """
    check_shapes("window_return", "T B", r_t=r_t, discount_t=discount_t, valid_t=valid_t, v_last=(v_last, "B"))
    r_t, discount_t = torch.where(valid_t, r_t, 0.0), torch.where(valid_t, discount_t, 1.0)
    g = v_last
    for r, discount in zip(reversed(r_t.unbind()), reversed(discount_t.unbind()), strict=True):
        g = torch.addcmul(r, discount, g)
    return g
