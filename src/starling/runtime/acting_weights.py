"""The copy of the learner's weights with which actors of the same process act, if they fetch them less often."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from starling.types import Progress


def is_due(now: Progress, fetched: Progress | None, every: int) -> bool:
    """Return True if weights of `now` are to be fetched, `every` so many updates after the `fetched` ones.

    An update count that has decreased is that of another learner, whose weights count.
    """
    return fetched is None or not 0 <= now.updates - fetched.updates < every


class ActingWeights:
    """A model that takes over the weights of another `every` so many updates."""

    def __init__(self, source: nn.Module, model: nn.Module, every: int) -> None:
        self._source, self.model, self._every = source, model, every
        self._fetched: Progress | None = None

    def refresh(self, now: Progress) -> Progress:
        """Fetch the weights if they are due, given the progress of the learner; return the progress of those here."""
        if self._fetched is None or is_due(now, self._fetched, self._every):
            self.model.load_state_dict(self._source.state_dict())
            self._fetched = now
        return self._fetched

    def get_state(self) -> dict[str, Any]:
        if self._fetched is None:
            return {}
        fetched = torch.tensor(
            [self._fetched.env_steps, self._fetched.updates, self._fetched.fraction], dtype=torch.float64
        )
        return {"model": dict(self.model.state_dict()), "fetched": fetched}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; {} stands for weights that were never fetched."""
        self._fetched = None
        if state:
            self.model.load_state_dict(state["model"])
            env_steps, updates, fraction = state["fetched"].tolist()
            self._fetched = Progress(int(env_steps), int(updates), fraction)
