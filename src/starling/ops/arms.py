"""Families of exploration policies (NGU, Agent57): the novelty weight and the discount of each policy."""

from __future__ import annotations

import math

import torch

from starling.types import Tensor


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
