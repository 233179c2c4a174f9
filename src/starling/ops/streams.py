"""Rewards, discounts, and masks of one reward stream, and sums over streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from starling.ops.policy import masked_sum
from starling.ops.shapes import check_shapes
from starling.types import StreamSpec, Tensor, Trajectory


@dataclass(frozen=True)
class StreamTerms:
    """Rewards, discounts, lambdas, and masks of one stream, in the form that the ops of `starling.ops` take.

    The two masks differ only at resets within a non-episodic stream.

    Attributes:
        r_t: Rewards [T, B], 0 on resets within a non-episodic stream.
        discount_t: Discounts [T, B], 0 at termination if the stream is episodic.
        lambda_t: A number, or [T, B].
        valid_t: bool [T, B]: steps of the recursion, at which the stream's value has a target.
        acted_t: bool [T, B]: steps at which an action was taken; it masks the policy loss.
    """

    r_t: Tensor
    discount_t: Tensor
    lambda_t: Tensor | float
    valid_t: Tensor
    acted_t: Tensor


def stream_terms(trajectory: Trajectory[Tensor], stream: StreamSpec, *, crosses_episodes: bool = True) -> StreamTerms:
    """Compute the terms of `stream` from a trajectory.

    Args:
        trajectory: T steps of B envs or sequences, e.g. `batch.trajectory`.
        stream: The stream; `trajectory.rewards` must have rewards of its name. A non-episodic stream continues through
            resets with reward 0, discount 1, and lambda 1.
        crosses_episodes: True if the trajectory continues with the next episode after a reset, as rollouts do; False
            if sequences end with their episode, as those of a replay do. A non-episodic stream then bootstraps from the
            last observation, as at a truncation.
    """
    if stream.name not in trajectory.rewards:
        raise ValueError(f"stream_terms: no rewards of stream {stream.name!r}, only {sorted(trajectory.rewards)}")
    r_t, valid_t = trajectory.rewards[stream.name], trajectory.valid
    terminated_t = trajectory.terminated
    check_shapes("stream_terms", "T B", r_t=r_t, valid=valid_t, terminated=terminated_t)
    if stream.episodic:
        discount_t = torch.full_like(r_t, stream.discount).masked_fill_(terminated_t, 0.0)
        return StreamTerms(r_t, discount_t, stream.lambda_, valid_t, valid_t)
    if not crosses_episodes:
        return StreamTerms(r_t, torch.full_like(r_t, stream.discount), stream.lambda_, valid_t, valid_t)
    reset_t = ~valid_t
    discount_t = torch.full_like(r_t, stream.discount).masked_fill_(reset_t, 1.0)
    lambda_t = torch.full_like(r_t, stream.lambda_).masked_fill_(reset_t, 1.0)
    r_t = torch.where(valid_t, r_t, 0.0)
    return StreamTerms(r_t, discount_t, lambda_t, torch.ones_like(valid_t), valid_t)


def bootstrap_from_reset(q: Tensor, ended_t: Tensor, value: Tensor) -> Tensor:
    """Replace Q values [T+1, B, A] or [B, A] of final observations (after `ended_t` [T, B] or [B]) by `value` [].

    A non-episodic stream continues with the first observation of the next episode, which a sequence that ends with its
    episode does not contain. The final observation itself never gets a target, because no action follows it.
    """
    if ended_t.dim() == 2:
        ended_t = torch.cat([torch.zeros_like(ended_t[:1]), ended_t])  # [T+1, B]
    return torch.where(ended_t.unsqueeze(-1), value.to(q), q)


def total(values: Sequence[Tensor]) -> Tensor:
    """Sum of tensors of the same shape, one per stream; a single tensor is returned as is."""
    return reduce(torch.add, values)


def weighted_total(values: Mapping[str, Tensor], streams: Sequence[StreamSpec]) -> Tensor:
    """Weighted sum over streams; a single stream with weight 1 is returned as is."""
    return total([values[s.name] if s.weight == 1 else s.weight * values[s.name] for s in streams])


def loss_at_ends(value_losses: Mapping[str, Tensor], streams: Sequence[StreamSpec], valid_t: Tensor) -> Tensor | float:
    """Value losses [T, B] of non-episodic streams on resets, divided by the number of valid steps: [].

    Add it to a mean over valid steps. Returns of these streams continue after the end of an episode, so V(final obs),
    from which they bootstrap, needs a target too.
    """
    endless = [value_losses[stream.name] for stream in streams if not stream.episodic]
    return masked_sum(total(endless), ~valid_t) / valid_t.sum().clamp(min=1) if endless else 0.0
