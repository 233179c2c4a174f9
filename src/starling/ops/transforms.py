"""Value rescaling: h and its inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from starling.types import Tensor


def h(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Value rescaling sign(x) (sqrt(|x| + 1) - 1) + eps x (1805.11593), computed without cancellation near 0."""
    return x * (1.0 / (torch.sqrt(x.abs() + 1.0) + 1.0) + eps)


def h_inverse(x: Tensor, eps: float = 1e-3) -> Tensor:
    """The exact inverse of `h`.

    With u = sqrt(|y| + 1) - 1, |h(y)| = eps u^2 + (1 + 2 eps) u. The root u is computed without a subtraction, because
    the textbook form loses all digits in float32. Then |y| = u (u + 2).
    """
    b = 1.0 + 2.0 * eps
    u = 2.0 * x / (b + torch.sqrt(b * b + 4.0 * eps * x.abs()))  # has the sign of x
    return u * (u.abs() + 2.0)


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Transform:
    """A value transform and its inverse; networks predict `apply(value)`."""

    apply: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


IDENTITY = Transform(_same, _same)
RESCALED = Transform(h, h_inverse)
