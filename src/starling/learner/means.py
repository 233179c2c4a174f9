"""Means of what happened since they were last asked for."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import torch

from starling.types import Tensor


class Means:
    """Collects numbers and scalar tensors by name.

    Tensors are read `later`, when asked for, where reading would wait for a GPU. Else they are read at once: small ones
    that stay behind would lie between the large ones of an update, which then move on from one update to the next.
    """

    def __init__(self, *, later: bool) -> None:
        self._later = later
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._tensors: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, name: str, value: Tensor | float) -> None:
        if not isinstance(value, Tensor):
            self._numbers[name].append(value)
        elif self._later:
            self._tensors[name].append(value.detach())
        else:
            self._numbers[name].append(value.item())

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
        if any(values.ndim != 1 or not len(values) for values in state.values()):
            raise ValueError("saved means are not lists of numbers")
        self._numbers = defaultdict(list, {name: values.tolist() for name, values in state.items()})
