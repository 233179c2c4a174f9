"""Returns and advantages of sequences that may contain several episodes.

Step t goes from obs[t] to obs[t+1]; `discount_t` is already 0 at termination. The step after the end of an episode is
a reset and invalid: its obs is the final observation. There, delta and trace are 0 and the target is the value itself,
so a truncated episode bootstraps from V(final obs) and nothing leaks from the next episode. `window_return` is
different: it has one target per sequence, and its invalid steps are padding, which it skips.
"""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor


def backward_recursion(base_t: Tensor, weight_t: Tensor, x_last: Tensor) -> Tensor:
    """Solve x_t = base_t + weight_t x_{t+1} backward from x_T = x_last, with one op per step.

    Args:
        base_t: [T, B].
        weight_t: [T, B].
        x_last: x_T [B].

    Returns:
        x_0, ..., x_{T-1} [T, B].
    """
    x, xs = x_last, []
    for base, weight in zip(reversed(base_t.unbind()), reversed(weight_t.unbind()), strict=True):
        x = torch.addcmul(base, weight, x)
        xs.append(x)
    return torch.stack(xs[::-1])


@torch.no_grad()
def gae(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    lambda_t: Tensor | float,
    valid_t: Tensor,
) -> Tensor:
    """Generalized advantage estimates (1506.02438, eq. 16).

        A_t = delta_t + discount_t lambda_t A_{t+1},  delta_t = r_t + discount_t v_tp1 - v_t

    Args:
        r_t: Rewards [T, B].
        discount_t: Discounts [T, B], 0 at termination.
        v_t: Values [T, B] at obs[t].
        v_tp1: Values [T, B] at obs[t+1].
        lambda_t: A number, or [T, B]. 0 gives one-step TD errors, 1 whole returns minus v_t.
        valid_t: bool [T, B], False on resets and padding.

    Returns:
        Advantages [T, B] without gradient, 0 on invalid steps. The value targets are advantages + v_t.
    """
    check_shapes("gae", "T B", r_t=r_t, discount_t=discount_t, v_t=v_t, v_tp1=v_tp1, lambda_t=lambda_t, valid_t=valid_t)
    delta_t = torch.where(valid_t, r_t + discount_t * v_tp1 - v_t, 0.0)
    trace_t = torch.where(valid_t, discount_t * lambda_t, 0.0)
    return backward_recursion(delta_t, trace_t, torch.zeros_like(delta_t[0]))


@torch.no_grad()
def lambda_return(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    lambda_t: Tensor | float,
    valid_t: Tensor,
) -> Tensor:
    """Lambda returns G_t = r_t + discount_t ((1 - lambda_t) v_tp1 + lambda_t G_{t+1}) (Sutton and Barto, eq. 12.18).

    The last valid step of an episode or of the sequence bootstraps from its own v_tp1.

    Args:
        r_t: Rewards [T, B].
        discount_t: Discounts [T, B], 0 at termination.
        v_t: Values [T, B] at obs[t]; the targets of invalid steps.
        v_tp1: Values [T, B] at obs[t+1].
        lambda_t: A number, or [T, B]. 0 gives one-step targets, 1 Monte Carlo returns.
        valid_t: bool [T, B], False on resets and padding.

    Returns:
        Value targets [T, B] without gradient; v_t on invalid steps.
    """
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
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    n: int,
    valid_t: Tensor,
) -> Tensor:
    """n-step returns r_t + ... + discount^n v_{t+n} for every t.

    Use it for long sequences in which every step gets a target, as in R2D2. Returns have fewer steps if the sequence or
    the episode ends before. For a single target per sequence, see `window_return`.

    Args:
        r_t: Rewards [T, B].
        discount_t: Discounts [T, B], 0 at termination.
        v_t: Values [T, B] at obs[t]; the targets of invalid steps.
        v_tp1: Values [T, B] at obs[t+1].
        n: Number of rewards before the bootstrap, at least 1.
        valid_t: bool [T, B], False on resets and padding.

    Returns:
        Value targets [T, B] without gradient; v_t on invalid steps.
    """
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
    r_t: Tensor,
    discount_t: Tensor,
    v_last: Tensor,
    valid_t: Tensor,
) -> Tensor:
    """Return of a whole sequence: discounted rewards plus the discounted value of the last observation.

    Use it if only the first step of each sequence gets a target, as in DQN and SAC on sequences of n steps; only the
    last observation then needs a value. For targets of all steps, see `n_step_return`.

    A sequence lies within one episode, and its padding repeats the final observation, so `v_last` follows the last
    valid step. With T = n, this is the n-step target of the first step; T = 1 gives r + discount v_last.

    Args:
        r_t: Rewards [T, B]; those of invalid steps are ignored.
        discount_t: Discounts [T, B], 0 at termination.
        v_last: Values [B] at obs[T].
        valid_t: bool [T, B], False on padding.

    Returns:
        Value targets [B] of the first step, without gradient.
    """
    check_shapes("window_return", "T B", r_t=r_t, discount_t=discount_t, valid_t=valid_t, v_last=(v_last, "B"))
    r_t, discount_t = torch.where(valid_t, r_t, 0.0), torch.where(valid_t, discount_t, 1.0)
    g = v_last
    for r, discount in zip(reversed(r_t.unbind()), reversed(discount_t.unbind()), strict=True):
        g = torch.addcmul(r, discount, g)
    return g
