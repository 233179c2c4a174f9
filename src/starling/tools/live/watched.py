"""Runs that are read again as they go on. Nothing that a run names is imported, as in a report."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starling.errors import UserError
from starling.experiment.run_folder.folder import find
from starling.experiment.run_folder.lock import is_locked
from starling.tools.report.runs import Run, names_of, read_run

EVERY = 1.0
"""Least seconds between two looks at the files of runs."""
_COST = 10.0  # reading takes at most a tenth of the time, however long the metrics are
_FILES = ("", "config.yaml", "metrics.jsonl", "log.txt", "videos")
_Mark = tuple[object, ...]


@dataclass(frozen=True)
class View:
    """The watched runs at one moment.

    Attributes:
        runs: runs that have been read, in the order in which they were named.
        problems: one line for each that cannot be read, by its name.
        version: grows with every change.
    """

    runs: tuple[Run, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    version: int = 0


class Watched:
    """Reads runs again when their files have changed; several threads may ask for the view.

    A run whose folder is gone or cannot be read any more is kept as it was last, with a line that says so.

    Raises:
        UserError: there is no run at any of the paths.
    """

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        wanted = list({path.resolve(): path for path in paths}.values())
        self._paths = dict(zip(names_of(wanted), wanted, strict=True))
        self._clock, self._due = clock, clock()
        self._lock = threading.Lock()
        self._marks: dict[str, _Mark] = {}
        self._runs: dict[str, Run] = {}
        self._problems: dict[str, str] = {}
        self._view = View()
        self._check_there()

    def view(self) -> View:
        """Return the newest view; reads what has changed if the last look was long enough ago."""
        with self._lock:
            started = self._clock()
            if started >= self._due:
                changed = [self._look(name, path) for name, path in self._paths.items()]
                if any(changed):
                    runs = tuple(self._runs[name] for name in self._paths if name in self._runs)
                    self._view = View(runs, tuple(self._problems.items()), self._view.version + 1)
                now = self._clock()
                self._due = now + max(EVERY, _COST * (now - started))
            return self._view

    def _check_there(self) -> None:
        problems = []
        for path in self._paths.values():
            try:
                find(path)
            except UserError as error:
                problems += str(error).splitlines()[:1]
        if len(problems) == len(self._paths):
            raise UserError(*problems)

    def _look(self, name: str, path: Path) -> bool:
        """Read a run again if its files have changed; returns True if so."""
        mark = _mark(path)
        if self._marks.get(name) == mark:
            return False
        self._marks[name] = mark
        try:
            self._runs[name] = read_run(path, name)
            self._problems.pop(name, None)
        except (UserError, OSError) as error:
            self._problems[name] = (str(error).splitlines() or ["it cannot be read"])[0]
            if name in self._runs:
                state = "deleted or moved while it was watched" if not path.is_dir() else "cannot be read any more"
                self._runs[name] = replace(self._runs[name], is_running=False, status=state)
        return True


def _mark(path: Path) -> _Mark:
    """Return what changes whenever the files that a report reads do."""
    found: list[object] = [is_locked(path)]
    for name in _FILES:
        try:
            status = os.stat(path / name, follow_symlinks=not name)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
