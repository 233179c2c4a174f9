"""What the recursions need of one reward stream of a trajectory."""

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
    """Rewards, discounts, lambdas and masks of one stream, as every op of `starling.ops` takes them.

    `valid_t` says where the recursion runs and where the stream's value has a target; `acted_t` where an action was
    taken, so a policy's loss is masked by it. They differ only where a non-episodic stream passes through a reset.
    """

    r_t: Tensor  # [T, B] float, 0 on resets that the stream passes through
    discount_t: Tensor  # [T, B] float, 0 at termination if the stream is episodic
    lambda_t: Tensor | float  # [T, B] float
    valid_t: Tensor  # [T, B] bool
    acted_t: Tensor  # [T, B] bool


def stream_terms(trajectory: Trajectory[Tensor], stream: StreamSpec, *, whole: bool = True) -> StreamTerms:
    """The terms of `stream`; a non-episodic one passes through resets: reward 0, discount 1, lambda 1.

    A window that ends with its episode is not `whole`: there is no next episode to pass to, so the value of the last
    observation stands for all that would come, as it does where an episode is cut.
    """
    if stream.name not in trajectory.rewards:
        raise ValueError(f"stream_terms: no rewards of stream {stream.name!r}, only {sorted(trajectory.rewards)}")
    r_t, valid_t = trajectory.rewards[stream.name], trajectory.valid
    terminated_t = trajectory.terminated
    check_shapes("stream_terms", "T B", r_t=r_t, valid=valid_t, terminated=terminated_t)
    if stream.episodic:
        discount_t = torch.full_like(r_t, stream.discount).masked_fill_(terminated_t, 0.0)
        return StreamTerms(r_t, discount_t, stream.lambda_, valid_t, valid_t)
    if not whole:
        return StreamTerms(r_t, torch.full_like(r_t, stream.discount), stream.lambda_, valid_t, valid_t)
    reset_t = ~valid_t
    discount_t = torch.full_like(r_t, stream.discount).masked_fill_(reset_t, 1.0)
    lambda_t = torch.full_like(r_t, stream.lambda_).masked_fill_(reset_t, 1.0)
    r_t = torch.where(valid_t, r_t, 0.0)
    return StreamTerms(r_t, discount_t, lambda_t, torch.ones_like(valid_t), valid_t)


def bootstrap_from_reset(q: Tensor, ended_t: Tensor, value: Tensor) -> Tensor:
    """Q values [T+1, B, A] or [B, A] in which observations that an end [T, B] or [B] led to are worth `value` [].

    A non-episodic stream goes on with the next episode's first observation, which a window that ends with its episode
    does not hold. The final observation itself never gets a target, because no action follows it.
    """
    if ended_t.dim() == 2:
        ended_t = torch.cat([torch.zeros_like(ended_t[:1]), ended_t])  # [T+1, B]
    return torch.where(ended_t.unsqueeze(-1), value.to(q), q)


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of what every stream says, all of one shape; of one stream it is that tensor itself."""
    return reduce(torch.add, parts)


def weighted_total(parts: Mapping[str, Tensor], streams: Sequence[StreamSpec]) -> Tensor:
    """The streams' parts by weight; of one stream with weight 1 it is that tensor itself."""
    return total([parts[s.name] if s.weight == 1 else s.weight * parts[s.name] for s in streams])


def loss_at_ends(errors: Mapping[str, Tensor], streams: Sequence[StreamSpec], valid_t: Tensor) -> Tensor | float:
    """What value losses [T, B] of non-episodic streams add [] on resets to a mean over valid steps [T, B].

    Their returns go on behind an end, so V(final obs), which is bootstrapped from there, has a target too.
    """
    endless = [errors[stream.name] for stream in streams if not stream.episodic]
    return masked_sum(total(endless), ~valid_t) / valid_t.sum().clamp(min=1) if endless else 0.0
