"""Write the output of workers to their logs, and show a limited number of lines in the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from starling.config.secrets import hide_in
from starling.errors import escaped
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.worker_logs import WorkerLogs

MOST_PER_SECOND = 10
"""Lines that are shown; a run may have hundreds of workers that print."""


class Printed(Protocol):
    """A line that a worker printed; see `runtime.worker_output`."""

    @property
    def worker(self) -> str: ...

    @property
    def time(self) -> float: ...

    @property
    def text(self) -> str: ...


class WorkerOutput:
    """Writes the lines of workers to their logs and shows the first ones of every second."""

    def __init__(
        self, place: RunFolder, show: Callable[[str], None], secrets: list[str], clock: Callable[[], float]
    ) -> None:
        self._path, self._show, self._secrets, self._clock = place.path, show, secrets, clock
        self._logs = WorkerLogs(place.path)
        self._second, self._shown, self._hidden = 0, 0, 0

    def take(self, lines: Sequence[Printed]) -> None:
        """Handle new lines."""
        logged: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for line in lines:
            text = hide_in(line.text, self._secrets)
            logged[line.worker].append((line.time, text))
            self._show_some(f"{line.worker}: {escaped(text)}")
        for worker, its_lines in logged.items():
            self._logs.write(worker, its_lines)

    def _show_some(self, line: str) -> None:
        if (second := int(self._clock())) != self._second:
            if self._hidden:
                self._show(f"{self._hidden:,} more lines of workers: starling logs {self._path}")
            self._second, self._shown, self._hidden = second, 0, 0
        self._shown += 1
        if self._shown <= MOST_PER_SECOND:
            self._show(line)
        else:
            self._hidden += 1
