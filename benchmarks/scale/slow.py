"""An env that takes time without using a core, for simulating several nodes on one machine."""

from __future__ import annotations

import time
from typing import Any

from starling.envs.toy import Identity
from starling.types import NDArray


class Slow(Identity):
    """`toy/identity` whose steps take `seconds` each, like those of a simulator on another machine."""

    def __init__(self, seconds: float = 0.005, **args: Any) -> None:
        super().__init__(**args)
        self._seconds = seconds

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)
