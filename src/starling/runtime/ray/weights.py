"""Weights as Ray objects, put once per version and only on demand."""

from __future__ import annotations

from typing import Any

import ray

from starling.runtime.shared_weights import SharedWeights


class RayWeights:
    """The newest weights as a Ray object, which each node fetches once."""

    def __init__(self, shared_weights: SharedWeights) -> None:
        self._shared_weights = shared_weights
        self._number = 0
        self._reference: Any = None
        self.puts = 0

    def newest(self) -> Any:
        """Return a reference to (number, bytes of a copy), see `SharedWeights.bytes_of`."""
        shared_weights = self._shared_weights
        put = shared_weights.newest(
            self._number, lambda number: (number, ray.put((number, shared_weights.bytes_of(number))))
        )
        if put is not None:
            self._number, self._reference = put
            self.puts += 1
        assert self._reference is not None, "weights are published before anybody acts"
        return self._reference
