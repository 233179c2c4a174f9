"""Policy and value losses a step, their masked reductions, and what is logged about them.

Losses are elementwise [...]: PPO takes their `masked_mean`, IMPALA their `masked_sum`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from starling.ops.shapes import check_shapes
from starling.types import Tensor


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """The sum over valid steps []; x and valid are [...]."""
    check_shapes("masked_sum", "...", x=x, valid=valid)
    return torch.where(valid, x, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """The mean over valid steps [], 0 if there are none; x and valid are [...]."""
    check_shapes("masked_mean", "...", x=x, valid=valid)
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


@torch.no_grad()
def masked_means(named: Mapping[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
    """`masked_mean` of several tensors [...] at once, without gradient: what is logged."""
    values = torch.stack(list(named.values()))
    check_shapes("masked_means", "...", values=values[0], valid=valid)
    sums = torch.where(valid, values, 0.0).flatten(1).sum(1)
    return dict(zip(named, sums / valid.sum().clamp(min=1), strict=True))


@torch.no_grad()
def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
    """(advantage - mean) / (std + 1e-8) over valid steps, 0 elsewhere; [...]."""
    centred = torch.where(valid, advantage - masked_mean(advantage, valid), 0.0)
    std = masked_mean(centred.square(), valid).sqrt()
    return centred / (std + 1e-8)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-log pi(a) advantage [...]; no gradient through the advantage."""
    check_shapes("policy_gradient_loss", "...", log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


def log_ratio(log_prob: Tensor, behaviour_log_prob: Tensor) -> Tensor:
    """log pi(a) - log mu(a) [...]; gradient through `log_prob` alone."""
    check_shapes("log_ratio", "...", log_prob=log_prob, behaviour_log_prob=behaviour_log_prob)
    # An infinite ratio on a masked row would turn its gradient, 0 x inf, into NaN.
    return (log_prob - behaviour_log_prob.detach()).clamp(max=80.0)


def ppo_surrogate(log_rho: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """The negated clipped surrogate (1707.06347, eq. 7) [...], a loss, from log ratios and advantages [...].

    `clip` [...] or [] is a tensor because it may change with time, and what is compiled takes a number for a constant.
    """
    check_shapes("ppo_surrogate", "...", log_rho=log_rho, advantage=advantage)
    rho, advantage = log_rho.exp(), advantage.detach()
    return -torch.minimum(rho * advantage, rho.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(v: Tensor, target: Tensor) -> Tensor:
    """(v - target)^2 / 2 [...]; no gradient through the target."""
    check_shapes("value_loss", "...", v=v, target=target)
    return 0.5 * (v - target.detach()).square()


def clipped_value_loss(v: Tensor, v_old: Tensor, target: Tensor, clip: float) -> Tensor:
    """The larger of `value_loss` at v and at v held within `clip` of v_old (2005.12729, section 3) [...]."""
    check_shapes("clipped_value_loss", "...", v=v, v_old=v_old, target=target)
    v_old = v_old.detach()
    v_held = v_old + (v - v_old).clamp(-clip, clip)
    return torch.maximum(value_loss(v, target), value_loss(v_held, target))


@torch.no_grad()
def kl_estimate(log_rho: Tensor) -> Tensor:
    """ratio - 1 - log ratio [...]: over the behaviour's own actions its mean is KL(behaviour || pi), never negative."""
    return torch.expm1(log_rho) - log_rho


@torch.no_grad()
def is_clipped(log_rho: Tensor, clip: Tensor) -> Tensor:
    """1 where the ratio lies outside 1 +- clip, else 0 [...]."""
    return (torch.expm1(log_rho).abs() > clip).to(log_rho.dtype)


@torch.no_grad()
def total_variation(log_rho: Tensor) -> Tensor:
    """1 - min(1, ratio) [...]: over the behaviour's own actions its mean is the total variation between the policies,
    the share of choices in which they differ."""
    return -torch.expm1(log_rho.clamp(max=0.0))
