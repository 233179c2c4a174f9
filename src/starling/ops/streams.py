"""What the recursions need of one reward stream of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from starling.ops.shapes import check_shapes
from starling.types import StreamSpec, Tensor, Trajectory


@dataclass(frozen=True)
class StreamTerms:
    """Rewards, discounts, lambdas and masks of one stream, as every op of `starling.ops` takes them.

    `valid_t` says where the recursion runs and where the stream's value has a target; `acted_t` where an action was
    taken, so a policy's loss is masked by it. They differ only where a non-episodic stream passes through a reset.
    """

    r_t: Tensor  # [T, B] float, 0 on reset rows and padding
    discount_t: Tensor  # [T, B] float, 0 at termination if the stream is episodic
    lambda_t: Tensor  # [T, B] float
    valid_t: Tensor  # [T, B] bool
    acted_t: Tensor  # [T, B] bool


def stream_terms(trajectory: Trajectory[Tensor], stream: StreamSpec) -> StreamTerms:
    """The terms of `stream`; a non-episodic one passes through resets: reward 0, discount 1, lambda 1."""
    if stream.name not in trajectory.rewards:
        raise ValueError(f"stream_terms: no rewards of stream {stream.name!r}, only {sorted(trajectory.rewards)}")
    r_t, valid_t = trajectory.rewards[stream.name], trajectory.valid
    terminated_t = trajectory.terminated
    check_shapes("stream_terms", r_t=(r_t, "T B"), valid=(valid_t, "T B"), terminated=(terminated_t, "T B"))
    ones_t = torch.ones_like(r_t)
    if stream.episodic:
        discount_t = stream.discount * (ones_t - terminated_t.to(r_t.dtype))
        lambda_t, stream_valid_t = stream.lambda_ * ones_t, valid_t
    else:
        discount_t = torch.where(valid_t, stream.discount, ones_t)
        lambda_t, stream_valid_t = torch.where(valid_t, stream.lambda_, ones_t), torch.ones_like(valid_t)
    return StreamTerms(torch.where(valid_t, r_t, 0.0), discount_t, lambda_t, stream_valid_t, valid_t)
