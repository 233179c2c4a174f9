"""Where the workers of a run are: this machine, or something that is rented and given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starling.runtime.hub import Hub


class Premises:
    """This machine."""

    def begin(self, hubs: Sequence[Hub]) -> None:
        """The run is put together; nothing of it is started yet."""

    def metrics(self) -> dict[str, Any]:
        return {}

    def before_end(self) -> None:
        """The run is about to tell everybody to stop."""

    def end(self) -> None:
        """Everybody has stopped."""
