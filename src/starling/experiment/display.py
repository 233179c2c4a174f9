"""What a run shows while it goes on: its status, its rows of metrics, and its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from starling.config.load import secret_values
from starling.config.schema import Config
from starling.config.secrets import hide_in
from starling.errors import escaped
from starling.experiment.run_folder.folder import RunFolder


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


class Display(Protocol):
    """Receives the progress of a run: status, rows of metrics, and messages."""

    def tick(self, status: Status) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def message(self, line: str) -> None: ...


class Logged:
    """Display that also writes messages to the run's log; the secrets of the configuration are hidden in both."""

    def __init__(self, display: Display, place: RunFolder, config: Config) -> None:
        self.tick, self.row = display.tick, display.row
        self._display, self._place, self._secrets = display, place, secret_values(config)
        self.aside = display.message
        """Shows a line that is in another log."""

    def message(self, line: str) -> None:
        line = escaped(hide_in(line, self._secrets))
        self._place.log(line)
        self._display.message(line)
