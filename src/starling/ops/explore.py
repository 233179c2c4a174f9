"""Exploration: epsilon-greedy actions with per-env epsilons and their probabilities, and Gaussian noise."""

from __future__ import annotations

import torch

from starling.ops.distributions import open_interval
from starling.ops.shapes import check_shapes
from starling.ops.value import take
from starling.types import Tensor


def ladder(rows: Tensor, total: int, base: float = 0.4, alpha: float = 7.0) -> Tensor:
    """Ape-X's epsilons base^(1 + alpha i / (N - 1)) [B] for envs i [B] of N (1803.00933, section 4.1); N = 1: base."""
    exponent = 1.0 + rows.to(torch.float32) * (alpha / max(total - 1, 1))
    return torch.pow(base, exponent)


def epsilon_metrics(epsilon: Tensor | float) -> dict[str, float]:
    """Metrics of an epsilon: its mean over envs [B], and its extremes if envs differ."""
    values = torch.as_tensor(epsilon, dtype=torch.float64)
    low, high = float(values.min()), float(values.max())
    extremes = {"epsilon_min": low, "epsilon_max": high} if low < high else {}
    return {"epsilon": float(values.mean()), **extremes}


@torch.no_grad()
def epsilon_greedy(q: Tensor, epsilon: Tensor | float, noise: Tensor) -> Tensor:
    """Sample epsilon-greedy actions [B] int64 from q [B, A], epsilon [B] or a number, and noise [B, 2] in (0, 1)."""
    check_shapes("epsilon_greedy", q=(q, "B A"), epsilon=(epsilon, "B"), noise=(noise, "B 2"))
    actions = q.shape[-1]
    uniform = (noise[:, 1] * actions).long().clamp(max=actions - 1)
    return torch.where(noise[:, 0] < epsilon, uniform, q.argmax(-1))


@torch.no_grad()
def epsilon_greedy_policy(q: Tensor, epsilon: Tensor | float) -> Tensor:
    """Epsilon-greedy probabilities of all actions [..., A], from q [..., A] and epsilon [...] or a number."""
    check_shapes("epsilon_greedy_policy", q=(q, "... A"), epsilon=(epsilon, "..."))
    epsilon = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else torch.full_like(q[..., :1], epsilon)
    uniform = (epsilon / q.shape[-1]).expand_as(q)
    return uniform.scatter_add(-1, q.argmax(-1, keepdim=True), 1.0 - epsilon)


@torch.no_grad()
def gaussian_exploration(action: Tensor, std: float, noise: Tensor) -> Tensor:
    """Add Gaussian noise to actions [B, D] and clip them to [-1, 1]; noise [B, D] uniform in (0, 1)."""
    check_shapes("gaussian_exploration", "B D", action=action, noise=noise)
    noisy: Tensor = action + std * torch.special.ndtri(open_interval(noise))
    return noisy.clamp(-1.0, 1.0)


def epsilon_greedy_probability(q: Tensor, epsilon: Tensor | float, action: Tensor) -> Tensor:
    """Epsilon-greedy probability [...] of `action` [...], Retrace's mu; q [..., A], epsilon [...] or a number."""
    return take(epsilon_greedy_policy(q, epsilon), action)
