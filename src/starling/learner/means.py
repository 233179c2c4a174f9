"""Means of metrics since they were last read."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import torch

from starling.types import Tensor


class Means:
    """Collects numbers and scalar tensors by name.

    With `defer_reads`, tensors are read in `drain`, since reading them at once would wait for the GPU. Otherwise (on
    the CPU) they are read at once: small tensors that stay alive between the large ones of an update would fragment the
    heap, so that the large ones could not reuse their memory in the next update.
    """

    def __init__(self, *, defer_reads: bool) -> None:
        self._defer_reads = defer_reads
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._tensors: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, name: str, value: Tensor | float) -> None:
        if not isinstance(value, Tensor):
            self._numbers[name].append(value)
        elif self._defer_reads:
            self._tensors[name].append(value.detach())
        else:
            self._numbers[name].append(value.item())

    def __contains__(self, name: str) -> bool:
        """Return True if a number of this name was added since the last `drain`."""
        return name in self._numbers

    def peek(self) -> dict[str, float]:
        """Return the mean of every name, independent of the order of values."""
        self._read()
        return {name: fmean(values) for name, values in sorted(self._numbers.items())}

    def drain(self) -> dict[str, float]:
        """Return what `peek` does, and start anew."""
        means = self.peek()
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
