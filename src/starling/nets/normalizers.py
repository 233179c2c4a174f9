"""Running statistics of observations and rewards as buffers of the model, published and saved with its weights.

Only `update` changes them, and only a learner calls it, so they are constant in actors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from starling.nets.encoders import is_image
from starling.nets.torsos import Path, space_leaves
from starling.ops.devices import on_cpu
from starling.ops.returns import backward_recursion
from starling.types import Tensor, Tree

LIMIT = 10.0
"""Normalized values are clipped to +- this many stds."""
_EPSILON = 1e-8


class Moments(nn.Module):
    """Mean and std of all values so far; the buffers are sums, so those of several learners can be added."""

    count: Tensor  # []
    total: Tensor  # [*shape]
    squares: Tensor  # [*shape]

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("total", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))
        self.register_load_state_dict_post_hook(_check_sums)  # type: ignore[no-untyped-call]
        self._sums = b""  # the sums from which `_known` was computed
        self._known: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor) -> None:
        """Add the valid [...] entries of x [..., *shape]."""
        if on_cpu(x):
            seen = x[valid].double()  # [n, *shape]
            self.count += len(seen)
        else:
            x, valid = x.flatten(0, valid.dim() - 1), valid.flatten()
            seen = torch.where(valid.view(-1, *[1] * (x.dim() - 1)), x, 0.0).double()
            self.count += valid.sum()
        self.total += seen.sum(0)
        self.squares += seen.square().sum(0)

    def mean(self) -> Tensor:
        """Mean [*shape], 0 before the first update."""
        return self.mean_and_std()[0]

    def std(self) -> Tensor:
        """Std [*shape], 1 before the first update."""
        return self.mean_and_std()[1]

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Mean and std [*shape]; on a CPU they are recomputed only if the sums have changed.

        Acting needs them at every step, and comparing bytes takes a tenth of the time of recomputing them. The sums are
        compared because loading weights changes them without a call of `update`.
        """
        if self.total.device.type != "cpu" or torch.compiler.is_compiling():
            return self._mean_and_std()
        sums = b"".join(part.numpy().tobytes() for part in (self.count, self.total, self.squares))
        if self._known is None or sums != self._sums:
            with torch.inference_mode(False), torch.no_grad():  # no inference tensors: learning may use them too
                self._sums, self._known = sums, self._mean_and_std()
        return self._known

    def _mean_and_std(self) -> tuple[Tensor, Tensor]:
        count = self.count.clamp(min=1.0)
        mean = self.total / count
        variance = (self.squares / count - mean.square()).clamp(min=0.0)
        std = torch.where(self.count > 0, variance, 1.0).add(_EPSILON).sqrt()
        return mean.float(), std.float()


def _check_sums(moments: nn.Module, _: object) -> None:
    """Raise ValueError if loaded sums are none that `Moments.update` could have made."""
    assert isinstance(moments, Moments)
    if bool(moments.count < 0) or bool((moments.squares < 0).any()):
        raise ValueError("statistics of fewer than no values")


@dataclass(frozen=True)
class Normalized:
    """Marks observations that are already normalized."""

    obs: Tree


class ObservationNormalizer(nn.Module):
    """(x - mean) / std for every float leaf of an observation; images and integers are unchanged."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        named = {_name(path): leaf for path, leaf in space_leaves(space)}
        self.moments = nn.ModuleDict({name: Moments(leaf.shape or ()) for name, leaf in named.items() if _scales(leaf)})

    def forward(self, obs: Tree) -> Tree:
        """Normalize obs, whose leaves are [..., *shape] with any leading axes."""
        return self._each(obs, ())

    @torch.no_grad()
    def update(self, obs: Tree, valid: Tensor) -> None:
        """Update the statistics with the valid [...] entries of obs [..., *shape]."""
        for path, leaf in _leaves(obs, ()):
            if _name(path) in self.moments:
                self._moments(path).update(leaf, valid)

    def _each(self, obs: Tree, path: Path) -> Tree:
        if isinstance(obs, dict):
            return {key: self._each(part, (*path, key)) for key, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(self._each(part, (*path, i)) for i, part in enumerate(obs))
        if _name(path) not in self.moments:
            return obs
        mean, std = self._moments(path).mean_and_std()
        return ((obs - mean) / std).clamp_(-LIMIT, LIMIT)

    def _moments(self, path: Path) -> Moments:
        found = self.moments[_name(path)]
        assert isinstance(found, Moments)
        return found


class MovingMean(nn.Module):
    """Exponential moving weighted mean, kept as decaying sums so that the changes of several learners can be added."""

    SPEED = 0.02
    sums: Tensor  # [2]: of weights, and of weighted values

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2))

    @torch.no_grad()
    def update(self, values: Tensor, weight: Tensor, mask: Tensor | None = None) -> None:
        """Add values [n] with weights [n], all or where `mask` [n] is True; does nothing if there are none."""
        if mask is not None:
            values, weight, count = torch.where(mask, values, 0.0), torch.where(mask, weight, 0.0), mask.sum()
            seen = torch.stack([weight.sum(), (weight * values).sum()]) / count.clamp(min=1)
            self.sums.lerp_(torch.where(count > 0, seen.to(self.sums), self.sums), self.SPEED)
        elif len(values):
            seen = torch.stack([weight.sum(), (weight * values).sum()]) / len(values)
            self.sums.lerp_(seen.to(self.sums), self.SPEED)

    def value(self) -> Tensor:
        """The mean [], 0 before the first update."""
        return self.sums[1] / self.sums[0].clamp(min=torch.finfo(self.sums.dtype).tiny)


class RewardScale(nn.Module):
    """Divide rewards by the std of the discounted return up to each step; no mean is subtracted.

    If a batch begins within an episode, the return before it is unknown and the mean return is used instead.
    """

    def __init__(self, discount: float) -> None:
        super().__init__()
        self.discount, self.returns = discount, Moments(())

    @torch.no_grad()
    def update(self, r_t: Tensor, first: Tensor, valid_t: Tensor) -> None:
        """Update the return statistics with rewards [T, B], which are 0 on invalid steps; first [T+1, B]."""
        goes_on_t = ~first[: len(r_t)]
        before = self.returns.mean().expand_as(r_t[0])
        # The backward recursion on reversed time runs forward.
        returns = backward_recursion(r_t.flip(0), (self.discount * goes_on_t).flip(0), before).flip(0)
        self.returns.update(returns, valid_t)

    def forward(self, r_t: Tensor) -> Tensor:
        """Rewards [T, B] divided by the std of returns, clipped."""
        return (r_t / self.returns.std()).clamp_(-LIMIT, LIMIT)


def _scales(leaf: spaces.Space[Any]) -> bool:
    return isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f" and not is_image(leaf)


def _name(path: Path) -> str:
    return "/".join(map(str, ("observation", *path)))


def _leaves(obs: Tree, path: Path) -> list[tuple[Path, Tensor]]:
    if isinstance(obs, dict | tuple):
        parts = obs.items() if isinstance(obs, dict) else enumerate(obs)
        return [found for key, part in parts for found in _leaves(part, (*path, key))]
    return [(path, obs)]
