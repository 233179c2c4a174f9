"""An environment that takes its time without using a core: nodes of a cluster that are simulated on one machine."""

from __future__ import annotations

import time
from typing import Any

from starling.envs.toy import Identity
from starling.types import NDArray


class Slow(Identity):
    """`toy/identity` whose steps take `seconds` each, as those of a simulator on another machine would."""

    def __init__(self, seconds: float = 0.005, **args: Any) -> None:
        super().__init__(**args)
        self._seconds = seconds

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)
