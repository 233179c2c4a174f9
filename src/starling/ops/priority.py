"""Prioritized replay: importance weights, and priorities of sequences."""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor


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
