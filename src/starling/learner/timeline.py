"""The env steps at which each policy version was created, to compute the lag of experience in env steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling.types import NDArray

MOST = 2048
"""Points of a timeline."""


class Timeline:
    """Env steps at every `stride`-th policy version; if it is full, every second point is dropped.

    A new one has only the point of version 0 at 0 env steps.
    """

    def __init__(self, most: int = MOST) -> None:
        self._points = np.zeros((2, most + 1))  # versions and env steps; the current one follows `size` points
        self._size, self._stride = 1, 1  # version 0 is at 0 env steps

    def add(self, version: int, env_steps: int) -> None:
        """Record that `version`, the last one plus 1, was created after `env_steps` env steps."""
        if version % self._stride == 0:
            self._points[:, self._size] = version, env_steps
            self._size += 1
            if self._size == self._points.shape[1] - 1:
                self._thin()
        self._points[:, self._size] = version, env_steps

    @property
    def latest(self) -> int:
        """Env steps at the newest version."""
        return int(self._points[1, self._size])

    def _thin(self) -> None:
        kept = self._points[:, : self._size : 2].copy()
        self._size, self._stride = kept.shape[1], 2 * self._stride
        self._points[:, : self._size] = kept

    def at(self, versions: NDArray) -> NDArray:
        """Env steps [B] at which these `versions` [B] were created, linearly interpolated between points."""
        return np.interp(versions, *self._points[:, : self._size + 1])

    def get_state(self) -> dict[str, Any]:
        return {"points": self._points[:, : self._size + 1].copy(), "stride": self._stride}

    def set_state(self, state: dict[str, Any]) -> None:
        rows, columns = state["points"].shape
        if rows != 2 or not 2 <= columns < self._points.shape[1] or int(state["stride"]) < 1:
            raise ValueError(f"a saved timeline of shape {state['points'].shape} and stride {state['stride']}")
        self._size, self._stride = columns - 1, int(state["stride"])
        self._points[:, : self._size + 1] = state["points"]
