"""The newest numbers of a run: the same for the page and for the terminal."""

from __future__ import annotations

from dataclasses import dataclass

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
        share: finished share of its env steps, in [0, 1]; None if it has no limit.
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
    if run.is_running and limit is not None and speed:
        facts.append(("Time left", duration(max(0, limit - steps) / speed)))
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
        share=None if limit is None else min(steps / limit, 1.0),
        facts=tuple(facts),
        limit=cut(table.limits[-1].text, 300) if table.limits else "",
        returns=() if column is None else tuple(column.points()[2][-points:]),
    )


def _known(run: Run, keys: tuple[str, ...]) -> list[Fact]:
    """Return the last values of those keys that the run has."""
    return [
        (_SHORTER.get(key, TITLES.get(key, key)), number(value))
        for key in keys
        if (value := run.table.last(key)) is not None
    ]


def _rounded(value: float | None) -> str:
    return number(value if value is None or value < 10 else round(value))
