"""Policy and value losses a step, their masked reductions, and what is logged about them.

Losses are elementwise [...]: PPO takes their `masked_mean`, IMPALA their `masked_sum`.
"""

from __future__ import annotations

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """The sum over valid steps []; x and valid are [...]."""
    check_shapes("masked_sum", x=(x, "..."), valid=(valid, "..."))
    return torch.where(valid, x, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """The mean over valid steps [], 0 if there are none; x and valid are [...]."""
    check_shapes("masked_mean", x=(x, "..."), valid=(valid, "..."))
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


@torch.no_grad()
def normalise(advantage: Tensor, valid: Tensor, eps: float = 1e-8) -> Tensor:
    """(advantage - mean) / (std + eps) over valid steps, 0 elsewhere; [...]."""
    centred = torch.where(valid, advantage - masked_mean(advantage, valid), 0.0)
    std = masked_mean(centred.square(), valid).sqrt()
    return centred / (std + eps)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-log pi(a) advantage [...]; no gradient through the advantage."""
    check_shapes("policy_gradient_loss", log_prob=(log_prob, "..."), advantage=(advantage, "..."))
    return -log_prob * advantage.detach()


def ppo_surrogate(log_prob: Tensor, behaviour_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The negated clipped surrogate (1707.06347, eq. 7) [...], a loss; gradient through `log_prob` alone."""
    ratio = _log_ratio("ppo_surrogate", log_prob, behaviour_log_prob, advantage=advantage).exp()
    advantage = advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(v: Tensor, target: Tensor) -> Tensor:
    """(v - target)^2 / 2 [...]; no gradient through the target."""
    check_shapes("value_loss", v=(v, "..."), target=(target, "..."))
    return 0.5 * (v - target.detach()).square()


def clipped_value_loss(v: Tensor, v_old: Tensor, target: Tensor, clip: float) -> Tensor:
    """The larger of `value_loss` at v and at v held within `clip` of v_old (2005.12729, section 3) [...]."""
    check_shapes("clipped_value_loss", v=(v, "..."), v_old=(v_old, "..."), target=(target, "..."))
    v_old = v_old.detach()
    v_held = v_old + (v - v_old).clamp(-clip, clip)
    return torch.maximum(value_loss(v, target), value_loss(v_held, target))


@torch.no_grad()
def approx_kl(log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor) -> Tensor:
    """An estimate of KL(behaviour || pi) from its own actions, mean of ratio - 1 - log ratio [], never negative."""
    log_ratio = _log_ratio("approx_kl", log_prob, behaviour_log_prob, valid=valid)
    return masked_mean(torch.expm1(log_ratio) - log_ratio, valid)


@torch.no_grad()
def clipped_fraction(log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor, clip: float) -> Tensor:
    """The share of valid steps [] whose ratio lies outside 1 +- clip."""
    ratio = _log_ratio("clipped_fraction", log_prob, behaviour_log_prob, valid=valid).exp()
    return masked_mean(((ratio - 1.0).abs() > clip).to(log_prob.dtype), valid)


def _log_ratio(op: str, log_prob: Tensor, behaviour_log_prob: Tensor, **beside: Tensor) -> Tensor:
    named = {name: (tensor, "...") for name, tensor in beside.items()}
    check_shapes(op, log_prob=(log_prob, "..."), behaviour_log_prob=(behaviour_log_prob, "..."), **named)
    # An infinite ratio on a masked row would turn its gradient, 0 x inf, into NaN.
    return (log_prob - behaviour_log_prob.detach()).clamp(max=80.0)
