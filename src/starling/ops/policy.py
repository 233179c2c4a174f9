"""Per-step policy and value losses, masked reductions, metrics, and the soft values and temperature of SAC.

Losses are elementwise [...]; PPO reduces them with `masked_mean`, IMPALA with `masked_sum`.

SAC: 1801.01290, 1812.05905; discrete actions 1910.07207. Soft values keep their gradient, because the policy maximizes
them; detach them for critic targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from starling.ops.distributions import Categorical
from starling.ops.shapes import check_shapes
from starling.types import Tensor


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum over valid steps []; x and valid are [...]."""
    check_shapes("masked_sum", "...", x=x, valid=valid)
    return torch.where(valid, x, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid steps [], 0 if there are none; x and valid are [...]."""
    check_shapes("masked_mean", "...", x=x, valid=valid)
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


@torch.no_grad()
def masked_means(named: Mapping[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
    """`masked_mean` of several tensors [...] at once, without gradient, for metrics."""
    values = torch.stack(list(named.values()))
    check_shapes("masked_means", "...", values=values[0], valid=valid)
    sums = torch.where(valid, values, 0.0).flatten(1).sum(1)
    return dict(zip(named, sums / valid.sum().clamp(min=1), strict=True))


@torch.no_grad()
def normalize(advantage: Tensor, valid: Tensor) -> Tensor:
    """Advantages [...] with mean 0 and std 1 over valid steps, 0 elsewhere: (advantage - mean) / (std + 1e-8)."""
    centered = torch.where(valid, advantage - masked_mean(advantage, valid), 0.0)
    std = masked_mean(centered.square(), valid).sqrt()
    return centered / (std + 1e-8)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-log pi(a) advantage [...]; no gradient through the advantage."""
    check_shapes("policy_gradient_loss", "...", log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


def log_ratio(log_prob: Tensor, behavior_log_prob: Tensor) -> Tensor:
    """log pi(a) - log mu(a) [...]; the gradient flows through `log_prob` only."""
    check_shapes("log_ratio", "...", log_prob=log_prob, behavior_log_prob=behavior_log_prob)
    # An infinite ratio on a masked step would make its gradient 0 * inf = NaN.
    return (log_prob - behavior_log_prob.detach()).clamp(max=80.0)


def ppo_surrogate(log_rho: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """The negated clipped surrogate of PPO (1707.06347, eq. 7), to be minimized.

        -min(rho A, clamp(rho, 1 - clip, 1 + clip) A)

    Args:
        log_rho: Log ratios log pi(a) - log pi_old(a) [...].
        advantage: Advantages A [...]; no gradient flows through them.
        clip: [...] or []; a tensor because it may follow a schedule, and compiled code treats a number as a constant.

    Returns:
        Losses [...] of single steps.
    """
    check_shapes("ppo_surrogate", "...", log_rho=log_rho, advantage=advantage)
    rho, advantage = log_rho.exp(), advantage.detach()
    return -torch.minimum(rho * advantage, rho.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(v: Tensor, target: Tensor) -> Tensor:
    """(v - target)^2 / 2 [...]; no gradient through the target."""
    check_shapes("value_loss", "...", v=v, target=target)
    return 0.5 * (v - target.detach()).square()


def clipped_value_loss(v: Tensor, v_old: Tensor, target: Tensor, clip: float) -> Tensor:
    """The maximum of `value_loss` at v and at v clipped to v_old +- clip (2005.12729, section 3).

    Args:
        v: Values [...] of the current network.
        v_old: Values [...] before the update.
        target: Value targets [...]; no gradient flows through them.
        clip: Largest distance of v from v_old.

    Returns:
        Losses [...] of single steps.
    """
    check_shapes("clipped_value_loss", "...", v=v, v_old=v_old, target=target)
    v_old = v_old.detach()
    v_held = v_old + (v - v_old).clamp(-clip, clip)
    return torch.maximum(value_loss(v, target), value_loss(v_held, target))


def soft_value(q: Tensor, log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """q - alpha log pi(a) [...] for a sampled action (1812.05905, eq. 3); q is the minimum of the two critics."""
    check_shapes("soft_value", "...", q=q, log_prob=log_prob)
    return q - alpha * log_prob


def expected_soft_value(q: Tensor, policy: Categorical, alpha: Tensor | float) -> Tensor:
    """sum_a pi(a) (q(a) - alpha log pi(a)) [...] (1910.07207, eq. 10); q [..., A]."""
    check_shapes("expected_soft_value", "... A", q=q, logits=policy.logits)
    return (policy.logits.softmax(-1) * q).sum(-1) + alpha * policy.entropy()


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """alpha (entropy - target) [...] (1812.05905, eq. 18), with a gradient for alpha only.

    For continuous actions, -log pi(a) is a sample of the entropy.
    """
    return log_alpha.exp() * (entropy.detach() - target_entropy)


@torch.no_grad()
def kl_estimate(log_rho: Tensor) -> Tensor:
    """ratio - 1 - log ratio [...]: non-negative; its mean over actions of the behavior policy mu is KL(mu || pi)."""
    return torch.expm1(log_rho) - log_rho


@torch.no_grad()
def is_clipped(log_rho: Tensor, clip: Tensor) -> Tensor:
    """1 if the ratio lies outside 1 +- clip, else 0 [...]."""
    return (torch.expm1(log_rho).abs() > clip).to(log_rho.dtype)


@torch.no_grad()
def total_variation(log_rho: Tensor) -> Tensor:
    """1 - min(1, ratio) [...]: its mean over actions of the behavior policy is the total variation distance."""
    return -torch.expm1(log_rho.clamp(max=0.0))


def explained_variance(v_t: Tensor, target_t: Tensor, valid_t: Tensor) -> Tensor:
    """1 - Var(target - v) / Var(target) [] over valid steps: at best 1, and 0 for constant values; inputs [T, B]."""
    error_t = target_t - v_t

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, valid_t)).square(), valid_t)

    return 1.0 - variance(error_t) / variance(target_t).clamp(min=1e-8)
