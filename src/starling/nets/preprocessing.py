"""Transformations of observations before a torso, chosen by name or as `package.module:Class`.

A transformation is a module from observations [N, ...] to observations [N, ...], with an attribute `space`: the space
of the latter. It is constructed with (space, **args).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from starling.config.parts import PreprocessingConfig
from starling.errors import UserError, did_you_mean, quoted
from starling.registry import Entry, Registry, check_arguments, check_kind
from starling.types import Tensor, Tree


class Select(nn.Module):
    """Keep some keys of a Dict observation, e.g. for a critic that sees more than the policy."""

    def __init__(self, space: spaces.Space[Any], keys: Sequence[str]) -> None:
        super().__init__()
        if not isinstance(space, spaces.Dict):
            raise UserError(f"preprocessing select needs a Dict observation, not {' '.join(str(space).split())}")
        for key in keys:
            if key not in space.spaces:
                known = [str(name) for name in space.spaces]
                raise UserError(
                    f"preprocessing select: observations have no key {quoted(key)}{did_you_mean(str(key), known)}"
                    f" (known: {', '.join(known)})"
                )
        self.keys = tuple(keys)
        self.space = spaces.Dict({key: space.spaces[key] for key in keys})

    def forward(self, obs: dict[str, Tree]) -> Tree:
        return {key: obs[key] for key in self.keys}


class Scale(nn.Module):
    """Compute (x - shift) * factor for a Box of floats; both are numbers, or one per element of the last axis."""

    shift: Tensor
    factor: Tensor

    def __init__(
        self, space: spaces.Space[Any], factor: float | Sequence[float] = 1.0, shift: float | Sequence[float] = 0.0
    ) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or space.dtype is None or not np.issubdtype(space.dtype, np.floating):
            raise UserError(f"preprocessing scale needs a Box of floats, not {' '.join(str(space).split())}")
        for name, value in (("factor", factor), ("shift", shift)):
            try:
                array = torch.tensor(value, dtype=torch.float32)
            except (TypeError, ValueError, RuntimeError):
                raise UserError(f"preprocessing scale: {name} must be a number or a list of numbers") from None
            if array.dim() and array.shape != space.shape[-1:]:
                raise UserError(
                    f"preprocessing scale: {name} has {len(array)} numbers, observations {space.shape[-1:]}"
                )
            self.register_buffer(name, array, persistent=False)
        self.space = spaces.Box(-np.inf, np.inf, space.shape, np.float32)

    def forward(self, obs: Tensor) -> Tensor:
        return (obs.float() - self.shift) * self.factor


PREPROCESSING = Registry(
    "preprocessing",
    {
        "select": Entry(Select, "some keys of a Dict observation"),
        "scale": Entry(Scale, "(observation - shift) * factor"),
    },
)


def build_preprocessing(
    space: spaces.Space[Any], configs: Sequence[PreprocessingConfig]
) -> tuple[list[nn.Module], spaces.Space[Any]]:
    """Build the transformations in order; also return the space of what the last one returns."""
    steps = []
    for config in configs:
        factory = PREPROCESSING.load(config.name)
        check_kind(factory, config.name, "preprocessing", (nn.Module,))
        check_arguments(factory, f"preprocessing {config.name}", "(space, **args)", space, **config.args)
        step = factory(space, **config.args)
        if not isinstance(getattr(step, "space", None), spaces.Space):
            raise UserError(
                f"preprocessing {config.name} needs an attribute `space`, the Gymnasium space of its outputs"
            )
        steps.append(step)
        space = step.space
    return steps, space
