"""Columns of metrics in bounded memory: long ones are averaged in pairs while they are read."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starling.errors import cut
from starling.experiment.run_folder.rows import Row
from starling.tools.results.from_run import starts_session

MOST_POINTS = 2_048
"""Points of a column; a column with more is averaged over 2, 4, ... rows."""
Floats = NDArray[np.float64]


@dataclass
class Column:
    """Values of one key with their env steps and seconds of training, and the exact last, least, and largest one."""

    count: int = 0
    last: float = math.nan
    low: float = math.inf
    high: float = -math.inf
    _points: array[float] = field(default_factory=lambda: array("d"))  # steps, seconds, and value, one after another
    _sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _summed: int = 0
    _stride: int = 1

    def add(self, steps: float, seconds: float, value: float) -> None:
        self.count += 1
        self.last, self.low, self.high = value, min(self.low, value), max(self.high, value)
        a, b, c = self._sums
        self._sums, self._summed = (a + steps, b + seconds, c + value), self._summed + 1
        if self._summed == self._stride:
            self._points.extend(total / self._stride for total in self._sums)
            self._sums, self._summed = (0.0, 0.0, 0.0), 0
            if len(self._points) == 3 * MOST_POINTS:
                pairs = np.array(self._points).reshape(-1, 2, 3)
                self._points, self._stride = array("d", pairs.mean(1).ravel()), 2 * self._stride

    def points(self) -> Floats:
        """Return env steps, seconds (NaN if not known), and values: [3, points], in the order of the rows."""
        rest = [total / self._summed for total in self._sums] if self._summed else []
        return np.array([*self._points, *rest], np.float64).reshape(-1, 3).T


@dataclass(frozen=True)
class Span:
    """Env steps and seconds between which a text of a row was the same."""

    text: str
    steps: tuple[float, float]
    seconds: tuple[float, float]


STEPS_PER_S, UPDATES_PER_S = "speed/steps", "speed/updates"
"""Columns that rows do not have: speeds over the last rows, where `time/..._per_s` are means since the start."""
SPEED_ROWS = 5
"""Rows of a speed: a single one may have an evaluation, or a burst of steps."""
MOST_SPANS = 400
MOST_COLUMNS = 500
"""Columns of a table; keys beyond are left out."""
MOST_VALUES = 2_000_000
"""Values of a table. Of the rows after that only every second has more than scores, then every fourth, and so on."""
SCORES = ("return", "eval/return")
_LONGEST_TEXT = 300
_SMALLEST = 1e-200  # smaller numbers are 0: their inverses and squares are none
_MOST_FRAMES = 10_000
"""Largest frame skip."""


@dataclass
class Table:
    """All columns of a run, and what was said to limit its speed."""

    columns: dict[str, Column] = field(default_factory=dict)
    limits: list[Span] = field(default_factory=list)
    rows: int = 0
    env_steps: int = 0
    sessions: int = 0
    seconds: float = 0.0
    frames_per_step: int = 1
    left_out: int = 0  # values of keys beyond `MOST_COLUMNS`

    def last(self, key: str) -> float | None:
        column = self.columns.get(key)
        return column.last if column is not None else None


class _Point(NamedTuple):
    """Counts of a session at a time of its clock."""

    seconds: float
    steps: float
    updates: float


def read_table(rows: Iterable[Row]) -> Table:
    """Read rows into columns. Seconds are those of training, over all sessions of the run."""
    table, before, earlier, fastest = Table(), dict[str, Any](), 0.0, 0.0
    reached, recent = (0.0, 0.0), deque[_Point](maxlen=SPEED_ROWS)
    values, stride = 0, 1
    for row in rows:
        table.rows += 1
        table.env_steps = row["env_steps"]
        steps, seconds = float(row["env_steps"]), _number(row, "time/seconds")
        if not before or _is_new_session(before, row):
            table.sessions += 1
            earlier, fresh = table.seconds, True
        else:
            fresh = False
        at = earlier + seconds if math.isfinite(seconds) else math.nan
        is_whole = table.rows % stride == 0
        for key, value in row.items() if is_whole else ((key, row.get(key)) for key in SCORES):
            if isinstance(value, int | float) and key != "env_steps":
                _add(table, key, steps, at, _plain(value))
                values += 1
        if values > MOST_VALUES:
            values, stride = values // 2, 2 * stride
        _add_speeds(table, recent, row, at, fresh)
        speed, frames = _number(row, "time/steps_per_s"), _number(row, "time/frames_per_s")
        if speed > fastest and frames >= speed:
            fastest, table.frames_per_step = speed, max(1, round(min(frames / speed, _MOST_FRAMES)))
        here = (steps, at if math.isfinite(at) else reached[1])
        if isinstance(said := row.get("time/bottleneck"), str):
            _add_limit(table.limits, cut(said, _LONGEST_TEXT), reached, here)
        reached, before = here, row
        table.seconds = here[1]
    return table


def _number(row: Row, key: str) -> float:
    value = row.get(key)
    return _plain(value) if isinstance(value, int | float) else math.nan


def _plain(value: float) -> float:
    return float(value) if abs(value) > _SMALLEST else 0.0


def _add(table: Table, key: str, steps: float, seconds: float, value: float) -> None:
    column = table.columns.get(key)
    if column is None:
        if len(table.columns) >= MOST_COLUMNS and key not in SCORES:
            table.left_out += 1
            return
        column = table.columns[key] = Column()
    column.add(steps, seconds, value)


def _is_new_session(before: Row, row: Row) -> bool:
    """Return True if a resumed session wrote `row`; if a row lacks its speed, only a clock that went back tells."""
    needed = [_number(each, key) for each in (before, row) for key in ("time/seconds", "time/steps_per_s")]
    if all(map(math.isfinite, needed)):
        return needed[2] < needed[0] or starts_session(before, row)
    return needed[2] < needed[0]


def _add_speeds(table: Table, recent: deque[_Point], row: Row, at: float, fresh: bool) -> None:
    """Add the speeds over the last rows of this session, or since its start, which follows from its mean speeds."""
    here = _Point(_number(row, "time/seconds"), float(row["env_steps"]), _number(row, "updates"))
    if fresh:
        speeds = (_number(row, f"time/{what}_per_s") for what in ("steps", "updates"))
        before = (count - speed * here.seconds for count, speed in zip((here.steps, here.updates), speeds, strict=True))
        recent.clear()
        recent.append(_Point(0.0, *before))
    start = recent[0]
    if here.seconds > start.seconds:
        for key, one, other in ((STEPS_PER_S, start.steps, here.steps), (UPDATES_PER_S, start.updates, here.updates)):
            speed = (other - one) / (here.seconds - start.seconds)
            if math.isfinite(speed):
                table.columns.setdefault(key, Column()).add(here.steps, at, max(0.0, speed))
    if all(map(math.isfinite, here)):
        recent.append(here)


def _add_limit(spans: list[Span], text: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    if len(spans) >= MOST_SPANS:  # every second one is joined with the one before
        spans[:] = [
            Span(one.text, (one.steps[0], other.steps[1]), (one.seconds[0], other.seconds[1]))
            for one, other in zip(spans[::2], spans[1::2], strict=False)
        ]
    spans.append(Span(text, (start[0], end[0]), (start[1], end[1])))
