"""The current status of a run, for a display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Status:
    """Current counts, score, and speed; `metrics` is the last row that was written."""

    env_steps: int
    updates: int
    episodes: int
    score: float | None
    steps_per_s: float
    frames_per_s: float
    metrics: dict[str, Any]
    evaluating: bool = False  # training waits for an evaluation
