"""Means of metrics since they were last read."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np


class Means:
    """Collects numbers by name.

    Tensors are read before: small ones that stayed alive between the large ones of an update would fragment the heap,
    so that the large ones could not reuse their memory in the next update.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        self._numbers[name].append(value)

    def __contains__(self, name: str) -> bool:
        """Return True if a number of this name was added since the last `drain`."""
        return name in self._numbers

    def peek(self) -> dict[str, float]:
        """Return the mean of every name, independent of the order of values."""
        return {name: fmean(values) for name, values in sorted(self._numbers.items())}

    def drain(self) -> dict[str, float]:
        """Return what `peek` does, and start anew."""
        means = self.peek()
        self._numbers.clear()
        return means

    def get_state(self) -> dict[str, Any]:
        return {name: np.array(values, np.float64) for name, values in self._numbers.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        if any(values.ndim != 1 or not len(values) for values in state.values()):
            raise ValueError("saved means are not lists of numbers")
        self._numbers = defaultdict(list, {name: values.tolist() for name, values in state.items()})
