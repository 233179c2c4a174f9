"""CLEAR (1811.11682): replayed unrolls also clone the policy and values that were recorded with them."""

from __future__ import annotations

import torch

from starling.algos.impala.impala import PolicyOutputs
from starling.ops.streams import total
from starling.types import StreamSpec, Tensor, Trajectory

VALUES = "values"
"""Extras: values per stream, recorded when acting."""


def cloning_losses(
    outputs: PolicyOutputs, trajectory: Trajectory[Tensor], streams: tuple[StreamSpec, ...], cloned: Tensor
) -> dict[str, Tensor]:
    """KL(mu || pi) and (V - V_recorded)^2 (section 3.2), [T, B] each and 0 where `cloned` [T, B] is False."""
    recorded = trajectory.extras[VALUES]
    errors = [(outputs.heads[s.name][:-1] - recorded[s.name][: trajectory.length]).square() for s in streams]
    losses = {"policy_clone": outputs.behavior.kl(outputs.policy), "value_clone": total(errors)}
    return {name: torch.where(cloned, loss, 0.0) for name, loss in losses.items()}
