"""Delta-Q: the effect of stale recurrent states in replay on Q values."""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor

SMALLEST_Q = 1e-3
"""Lower bound of the denominator, since a ratio to a Q near 0 is meaningless."""


@torch.no_grad()
def delta_q(q: Tensor, q_recorded: Tensor, q_t: Tensor, valid_t: Tensor) -> Tensor:
    """||q - q_recorded||_2 / |max_{t, a} q_t| [N, B] (R2D2, section 3).

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
