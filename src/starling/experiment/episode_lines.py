"""One line after every so many finished episodes (`log.episodes`), in the form that older projects print."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from starling.experiment.run_folder.metrics import Scoreboard

LOSSES = ("loss/q", "loss/critic", "loss/policy")
"""Main losses of the built-in algorithms; without any of them, the first loss that there is."""
Q_VALUES = "loss/q_values"


class EpisodeLines:
    """Formats a line after every `every` episodes; none if that is None.

    Args:
        clock: seconds, for the time between two lines.
    """

    def __init__(self, every: int | None, clock: Callable[[], float]) -> None:
        self._every, self._clock = every, clock
        self._last = clock()

    def is_due(self, episodes: int) -> bool:
        """Return True if a line is due after so many episodes."""
        return self._every is not None and episodes % self._every == 0

    def line(self, scores: Scoreboard, env_steps: int, metrics: Mapping[str, Any]) -> str:
        """Format the line; `metrics` are the newest known, with the keys of a row."""
        now, row = self._clock(), scores.row()
        seconds, self._last = now - self._last, now
        facts: dict[str, Any] = {"Episode": scores.episodes, "Step": env_steps}
        if "explore/epsilon" in metrics:
            facts["Epsilon"] = _short(metrics["explore/epsilon"])
        facts |= {
            "Mean Reward": round(row["return"], 3),
            "Mean Length": round(row["episode_length"], 3),
            "Mean Loss": _short(_main_loss(metrics)),
        }
        if Q_VALUES in metrics or "Epsilon" in facts:
            facts["Mean Q Value"] = _short(metrics.get(Q_VALUES))
        facts |= {"Time Delta": round(seconds, 3), "Time": time.strftime("%Y-%m-%dT%H:%M:%S")}
        return " - ".join(f"{name} {value}" for name, value in facts.items())


def _main_loss(metrics: Mapping[str, Any]) -> float | None:
    known = [key for key in metrics if key.startswith("loss/") and key.count("/") == 1 and key != Q_VALUES]
    key = next((key for key in (*LOSSES, *known) if key in metrics), None)
    return None if key is None else metrics[key]


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
