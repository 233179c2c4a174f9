"""The newest numbers of a run: the same for the page and for the terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.config.limits import MAX_STEPS
from starling.errors import cut
from starling.tools.report.metric_columns import STEPS_PER_S, UPDATES_PER_S
from starling.tools.report.panels import MAIN_LOSSES, TITLES
from starling.tools.report.runs import Run
from starling.tools.report.scale import duration, number

Fact = tuple[str, str]
"""A title and a formatted value."""
_SCORES = ("return", "eval/return", "episode_length")
_LEARNING = (*(key for key in MAIN_LOSSES if "OPTIMIZER" not in key), "learner/lag")
_SHORTER = {"eval/return": "Evaluation", "learner/lag": "Lag (updates)"}
"""Titles that fit beside a number, where those of the charts are longer."""


@dataclass(frozen=True)
class Now:
    """Where a run is.

    Attributes:
        name: its name in the report.
        about: its env, algorithm, and seed.
        state: whether it goes on, or why it ended.
        share: finished share of the limit that ends it first, in [0, 1]; None if it has no limit.
        facts: its newest numbers.
        limit: what limits its speed; empty if that is not known.
        returns: the last values of its return.
    """

    name: str
    about: str
    state: str
    share: float | None
    facts: tuple[Fact, ...]
    limit: str
    returns: tuple[float, ...]


def now_of(run: Run, points: int = 60) -> Now:
    """Return the newest numbers of a run, with the last `points` values of its return."""
    table, steps, whole = run.table, run.table.env_steps, run.setting("stop.env_steps")
    limit = whole if type(whole) is int and whole > 0 else None
    speed = table.last(STEPS_PER_S)
    facts = [("Env steps", number(steps) if limit is None else f"{steps:,} of {limit:,}")]
    facts.append(("Training time", duration(table.seconds or None)))
    share, left = _nearest_end(run)
    if run.is_running and left is not None:
        facts.append(("Time left", duration(left)))
    facts += _known(run, _SCORES)
    facts.append(("Steps/s", _rounded(speed)))
    if table.frames_per_step > 1 and speed is not None:
        facts.append(("Frames/s", _rounded(speed * table.frames_per_step)))
    facts.append(("Updates/s", _rounded(table.last(UPDATES_PER_S))))
    facts += _known(run, _LEARNING)
    if run.crashes:
        facts.append(("Crashed workers", number(run.crashes)))
    column = table.columns.get("return")
    return Now(
        name=run.name,
        about=cut(f"{run.env} · {run.algorithm} · seed {run.seed}", 120),
        state=cut(run.status, 160),
        share=share,
        facts=tuple(facts),
        limit=cut(table.limits[-1].text, 300) if table.limits else "",
        returns=() if column is None else tuple(column.points()[2][-points:]),
    )


def _nearest_end(run: Run) -> tuple[float | None, float | None]:
    """Return the finished share of the limit that ends a run first at its last speed, and the seconds until then."""
    table = run.table
    speed, episodes = table.last(STEPS_PER_S) or 0.0, table.last("episodes") or 0.0
    frames = table.frames_per_step
    counts_and_speeds = {
        "env_steps": (table.env_steps, speed),
        "frames": (table.env_steps * frames, speed * frames),
        "updates": (table.last("updates") or 0.0, table.last(UPDATES_PER_S) or 0.0),
        "episodes": (episodes, speed * episodes / max(table.env_steps, 1)),
        "minutes": ((table.last("time/seconds") or 0.0) / 60, 1 / 60),  # of the last session
    }
    ends = [
        (done / whole, (whole - done) / per_second if per_second > 0 else math.inf)
        for key, (done, per_second) in counts_and_speeds.items()
        if type(whole := run.setting(f"stop.{key}")) in (int, float if key == "minutes" else int)
        and 0 < whole <= MAX_STEPS
    ]
    if not ends:
        return None, None
    share, left = min(ends, key=lambda end: (end[1], -end[0]))
    return min(share, 1.0), max(0.0, left) if math.isfinite(left) else None


def _known(run: Run, keys: tuple[str, ...]) -> list[Fact]:
    """Return the last values of those keys that the run has."""
    return [
        (_SHORTER.get(key, TITLES.get(key, key)), number(value))
        for key in keys
        if (value := run.table.last(key)) is not None
    ]


def _rounded(value: float | None) -> str:
    return number(value if value is None or value < 10 else round(value))
