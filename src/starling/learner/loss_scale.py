"""A loss scale, without which the small gradients of float16 would be rounded to 0."""

from __future__ import annotations

from typing import Any

import torch

from starling.types import Tensor

START = 2.0**16
LARGEST = 2.0**24
GROWS_AFTER = 2000
"""Steps in a row with finite gradients after which the scale is doubled."""


class LossScale:
    """The factor of all losses in float16: halved when a gradient overflows, doubled when none did for long.

    It is the rule of `torch.amp.GradScaler`, for flat gradients: `factor` [] stays on the device, and `update` reads
    nothing, so that the host need not wait.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), START, device=device)
        self._finite = torch.zeros((), device=device)  # steps in a row

    def update(self, finite: Tensor) -> None:
        """Adapt the scale after a step, which was skipped unless `finite` [] is True."""
        steps = torch.where(finite, self._finite + 1, 0.0)
        grows = steps >= GROWS_AFTER
        grown = torch.where(grows, self.factor * 2, self.factor).clamp(max=LARGEST)
        self.factor.copy_(torch.where(finite, grown, self.factor / 2))
        self._finite.copy_(torch.where(grows, 0.0, steps))

    def get_state(self) -> dict[str, Any]:
        return {"factor": self.factor, "finite": self._finite}

    def set_state(self, state: dict[str, Any]) -> None:
        self.factor.copy_(state["factor"])
        self._finite.copy_(state["finite"])
