"""How far the recurrent states of a replay have drifted from what the present network would make of them."""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor

SMALLEST_Q = 1e-3
"""Below this a sequence's largest Q is taken for this: a ratio to nothing says nothing."""


@torch.no_grad()
def delta_q(q: Tensor, q_recorded: Tensor, q_t: Tensor, valid_t: Tensor) -> Tensor:
    """|q - q_recorded| over |max q_t| [N, B] (R2D2, section 3): of Q values [N, B, A] at N moments of a sequence, by
    the recomputed state and by the one recorded when acting, and those of all its valid steps [T, B, A], [T, B].
    """
    check_shapes(
        "delta_q", q=(q, "N B A"), q_recorded=(q_recorded, "N B A"), q_t=(q_t, "T B A"), valid_t=(valid_t, "T B")
    )
    largest = torch.where(valid_t, q_t.amax(-1), -torch.inf).amax(0).abs()  # [B]
    drift: Tensor = (q - q_recorded).norm(dim=-1)  # [N, B]
    return drift / largest.clamp(min=SMALLEST_Q)
