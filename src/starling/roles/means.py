"""Means of what happened since they were last asked for."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import torch

from starling.types import Tensor


class Means:
    """Collects numbers and scalar tensors by name; tensors are read only when asked for, so nothing waits for a GPU."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._tensors: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, name: str, value: Tensor | float) -> None:
        if isinstance(value, Tensor):
            self._tensors[name].append(value.detach())
        else:
            self._numbers[name].append(value)

    def __contains__(self, name: str) -> bool:
        """Whether a number of this name was added since."""
        return name in self._numbers

    def drain(self) -> dict[str, float]:
        """The mean of every name, exact whatever the order; then begin anew."""
        self._read()
        means = {name: fmean(values) for name, values in sorted(self._numbers.items())}
        self._numbers.clear()
        return means

    def _read(self) -> None:
        for name, tensors in self._tensors.items():
            self._numbers[name] += torch.stack(tensors).tolist()
        self._tensors.clear()

    def get_state(self) -> dict[str, Any]:
        self._read()
        return {name: np.array(values, np.float64) for name, values in self._numbers.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._tensors.clear()
        self._numbers = defaultdict(list, {name: values.tolist() for name, values in state.items()})
