"""Exploration: epsilon-greedy with per-env epsilons, Gaussian noise, and families of policies (NGU, Agent57).

The functions take the current epsilon. Its schedule is a setting of the algorithm (`epsilon`, a `Linear`).
"""

from __future__ import annotations

import math

import torch

from starling.ops.distributions import open_interval
from starling.ops.shapes import check_shapes
from starling.ops.value import batched_index
from starling.types import Tensor


def ladder(env_index: Tensor, total: int, base: float = 0.4, alpha: float = 7.0) -> Tensor:
    """Ape-X's epsilons base^(1 + alpha i / (N - 1)) of envs i (1803.00933, section 4.1).

    Args:
        env_index: Indices i [B] of envs, from 0.
        total: Number N of envs in the run; with a single one, epsilon is `base`.
        base: Epsilon of env 0, the largest.
        alpha: Env N - 1 has epsilon base^(1 + alpha), the smallest.

    Returns:
        Epsilons [B].
    """
    exponent = 1.0 + env_index.to(torch.float32) * (alpha / max(total - 1, 1))
    return torch.pow(base, exponent)


def epsilon_metrics(epsilon: Tensor | float) -> dict[str, float]:
    """Metrics of an epsilon: its mean over envs [B], and its extremes if envs differ."""
    values = torch.as_tensor(epsilon, dtype=torch.float64)
    low, high = float(values.min()), float(values.max())
    extremes = {"epsilon_min": low, "epsilon_max": high} if low < high else {}
    return {"epsilon": float(values.mean()), **extremes}


@torch.no_grad()
def epsilon_greedy(q: Tensor, epsilon: Tensor | float, noise: Tensor) -> Tensor:
    """Sample epsilon-greedy actions.

    Args:
        q: Q values [B, A].
        epsilon: Probability of a uniformly random action: a number, or [B].
        noise: [B, 2] uniform in (0, 1), e.g. `ActInput.noise(2)`.

    Returns:
        Actions [B], int64.
    """
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
    return batched_index(epsilon_greedy_policy(q, epsilon), action)


def novelty_weights(policies: int, most: float) -> Tensor:
    """beta_i [N]: 0 for the first policy, `most` for the last, a sigmoid in between (2002.06038, appendix A)."""
    if policies == 1:
        return torch.zeros(1)
    inner = [most * _sigmoid(10 * (2 * i - (policies - 2)) / (policies - 2)) for i in range(1, policies - 1)]
    return torch.tensor([0.0, *inner, most])


def discounts(policies: int, high: float, low: float) -> Tensor:
    """gamma_i [N] from `high`, for the exploitative policy, to `low`; log(1 - gamma) is evenly spaced (2002.06038)."""
    return torch.tensor(_spaced(policies, high, low))


def long_discounts(policies: int) -> Tensor:
    """gamma_i [N] of Agent57 (2003.13350, appendix G): from 0.9999 to 0.997 for the first eight, then down to 0.99.

    In the paper's formula the second to the seventh increase with i; here they decrease, like all others.
    """
    if policies < 10:
        raise ValueError(f"the family of Agent57 has at least 10 policies, not {policies}")
    rising = [0.997 + (0.9999 - 0.997) * _sigmoid(10 * (2 * i - 6) / 6) for i in range(1, 7)]
    return torch.tensor([0.9999, *sorted(rising, reverse=True), 0.997, *_spaced(policies - 8, 0.997, 0.99)])


def _spaced(count: int, high: float, low: float) -> list[float]:
    if count == 1:
        return [high]
    top, bottom = math.log(1 - high), math.log(1 - low)
    return [1 - math.exp(((count - 1 - i) * top + i * bottom) / (count - 1)) for i in range(count)]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
