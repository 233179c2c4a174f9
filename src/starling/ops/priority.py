"""Prioritized and recurrent replay: importance weights, priorities of sequences, delta-Q of stale recurrent states."""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor

SMALLEST_Q = 1e-3
"""Lower bound of the denominator of delta-Q, since a ratio to a Q near 0 is meaningless."""


def importance_weights(probability: Tensor, table_size: Tensor | int, beta: float) -> Tensor:
    """(N P)^-beta, divided by the largest in the batch (1511.05952, section 3.4) [B]; P [B], N a number or [B]."""
    check_shapes("importance_weights", "B", probability=probability, table_size=table_size)
    share = probability * table_size
    return (share.min() / share) ** beta  # equal to the quotient of weights, but cannot overflow


@torch.no_grad()
def sequence_priority(abs_td_t: Tensor, valid_t: Tensor, eta: float = 0.9) -> Tensor:
    """eta max_t |delta_t| + (1 - eta) mean_t |delta_t| over valid steps [T, B], 0 if none: [B] (R2D2, section 2.3)."""
    check_shapes("sequence_priority", "T B", abs_td_t=abs_td_t, valid_t=valid_t)
    abs_td_t = torch.where(valid_t, abs_td_t, 0.0)
    mean = abs_td_t.sum(0) / valid_t.sum(0).clamp(min=1)
    return eta * abs_td_t.amax(0) + (1.0 - eta) * mean


@torch.no_grad()
def delta_q(q: Tensor, q_recorded: Tensor, q_t: Tensor, valid_t: Tensor) -> Tensor:
    """Effect of stale recurrent states on Q: ||q - q_recorded||_2 / |max_{t, a} q_t| [N, B] (R2D2, section 3).

    Args:
        q: Q values at N steps of each sequence, from the recomputed recurrent state, [N, B, A].
        q_recorded: The same from the state recorded when acting, [N, B, A].
        q_t: Q values at all steps, [T, B, A].
        valid_t: Steps over which the maximum is taken, bool [T, B].
    """
    check_shapes(
        "delta_q", q=(q, "N B A"), q_recorded=(q_recorded, "N B A"), q_t=(q_t, "T B A"), valid_t=(valid_t, "T B")
    )
    largest = torch.where(valid_t, q_t.amax(-1), -torch.inf).amax(0).abs()  # [B]
    drift: Tensor = (q - q_recorded).norm(dim=-1)  # [N, B]
    return drift / largest.clamp(min=SMALLEST_Q)
