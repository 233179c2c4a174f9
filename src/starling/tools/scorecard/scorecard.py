"""The scorecard: scores of runs beside published ones, compared only where both were measured by the same protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from starling.errors import UserError, did_you_mean
from starling.tools.report.groups import Group, Series
from starling.tools.report.runs import Run
from starling.tools.report.scale import short
from starling.tools.scorecard.published import (
    Evaluation,
    Protocol,
    PublishedColumn,
    game_of,
    published,
)
from starling.tools.statistics import bootstrap_interval, interquartile_mean

FRAMES_TOLERANCE = 0.05
"""Relative difference of frames of training that still counts as the same length."""
EVALUATIONS: dict[Evaluation, str] = {
    "training": "last 100 training episodes",
    "final": "last evaluation",
    "best": "best evaluation of training",
}


@dataclass(frozen=True)
class Score:
    """A score of a series: the IQM over its seeds, with its 95% interval if there are several."""

    kind: Evaluation
    value: float
    interval: tuple[float, float] | None
    seeds: int
    normalized: float | None


@dataclass(frozen=True)
class Comparison:
    """A published score beside that of a series.

    Attributes:
        column: the published column.
        value: its score.
        normalized: the same, human-normalized; None if there are no human scores.
        score: the score of the series that belongs beside it; None if the run has no such score.
        differences: points of the protocol that differ, which forbid a comparison.
        unknown: points that are not recorded for the column.
    """

    column: PublishedColumn
    value: float
    normalized: float | None
    score: Score | None
    differences: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def is_comparable(self) -> bool:
        return self.score is not None and not self.differences

    @property
    def ratio(self) -> float | None:
        """Return the series' human-normalized score over the column's; None if they cannot be compared."""
        ours = self.score.normalized if self.score is not None else None
        if not self.is_comparable or ours is None or not self.normalized:
            return None
        return ours / self.normalized

    @property
    def verdict(self) -> str:
        """Return in words whether the two can be compared, and what differs."""
        if self.differences:
            return f"not compared: {'; '.join(self.differences)}"
        caveat = f" (not recorded: {', '.join(self.unknown)})" if self.unknown else ""
        return f"same protocol{caveat}"


@dataclass(frozen=True)
class Card:
    """The scorecard of one series."""

    series: Series
    game: str
    scores: tuple[Score, ...]
    comparisons: tuple[Comparison, ...]
    steps_per_s: float | None
    frames_per_s: float | None


def cards_of(group: Group, columns: Sequence[PublishedColumn] | None = None) -> list[Card]:
    """Return one card per series with a score, beside the published columns that have the game of the group.

    There are none for an env without published scores.
    """
    found = game_of(group.runs[0].env)
    if found is None:
        return []
    family, game = found
    chosen = published().columns if columns is None else columns
    beside = [column for column in chosen if column.family == family and game in column.scores]
    return [card for series in group.series if beside and (card := _card(series, game, beside)) is not None]


def column_called(name: str) -> PublishedColumn:
    """Return the published column called `name`, in any case; raises `UserError` if there is none."""
    columns = {column.name.lower(): column for column in published().columns}
    if name.lower() not in columns:
        known = [column.name for column in published().columns]
        raise UserError(f"no published column {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return columns[name.lower()]


def missing_line(env_id: str, columns: Sequence[PublishedColumn] | None = None) -> str:
    """Say that there is no published score for an env, and for which there are some."""
    games = published().games()
    known = "; ".join(f"{family}: {', '.join(sorted(names))}" for family, names in games.items())
    told = f" in {', '.join(column.name for column in columns)}" if columns else ""
    return f"no published score{told} for {env_id} ({known})"


def _card(series: Series, game: str, columns: Sequence[PublishedColumn]) -> Card | None:
    scores = _scores(series, game)
    if not scores:
        return None
    comparisons = [_compare(series, column, game, scores) for column in columns]
    speeds = [_finite(run.table.last("time/steps_per_s")) for run in series.runs]
    frames = [_finite(run.table.last("time/frames_per_s")) for run in series.runs]
    return Card(series, game, tuple(scores.values()), tuple(comparisons), _mean(speeds), _mean(frames))


def _scores(series: Series, game: str) -> dict[Evaluation, Score]:
    """Return the scores that a series has, each over the seeds that have it."""
    found: dict[Evaluation, list[float]] = {}
    for run in series.independent:
        for kind, value in _scores_of(run).items():
            found.setdefault(kind, []).append(value)
    is_atari = game_of(series.runs[0].env) == ("ALE", game)
    return {kind: _score(kind, values, game if is_atari else None) for kind, values in found.items()}


def _scores_of(run: Run) -> dict[Evaluation, float]:
    training, evaluated = run.table.columns.get("return"), run.table.columns.get("eval/return")
    found: dict[Evaluation, float] = {}
    if training is not None:
        found["training"] = training.last
    if evaluated is not None:
        found["final"], found["best"] = evaluated.last, evaluated.high
    return found


def _score(kind: Evaluation, values: list[float], game: str | None) -> Score:
    middle, interval = interquartile_mean(values), None
    if len(values) > 1:
        interval = bootstrap_interval(interquartile_mean, values, rng=np.random.default_rng(0), resamples=500)
    normalized = None if game is None else published().reference.normalized(game, middle)
    return Score(kind, middle, interval, len(values), normalized)


def _compare(series: Series, column: PublishedColumn, game: str, scores: Mapping[Evaluation, Score]) -> Comparison:
    wanted = column.protocol.evaluation or ("final", "best", "training")
    kind = next((kind for kind in wanted if kind in scores), None)
    score = scores[kind] if kind is not None else None
    ours = [replace(protocol_of(run), evaluation=(kind,) if kind else tuple(scores)) for run in series.runs]
    differences = tuple(dict.fromkeys(line for protocol in ours for line in _differences(protocol, column.protocol)))
    if series.runs[0].setting("env.wrappers"):
        differences = (*differences, "env.wrappers here, none there")
    unknown = [
        _POINTS[key]
        for key, value in vars(column.protocol).items()
        if value is None and key in _POINTS.keys() - _DECISIVE
    ]
    value = column.scores[game]
    normalized = published().reference.normalized(game, value) if column.family == "ALE" else None
    return Comparison(column, value, normalized, score, differences, tuple(unknown))


_POINTS = {
    "noop_max": "no-op starts",
    "sticky": "sticky actions",
    "life_loss": "end of training episodes at a lost life",
    "frames": "frames of training",
    "max_frames": "frames per episode",
    "evaluation": "evaluation",
    "epsilon": "epsilon of the evaluation",
    "frame_skip": "frame skip",
}
"""Points of a protocol in words."""
_DECISIVE = ("frames", "evaluation")
"""Points that must be recorded for a comparison."""


def protocol_of(run: Run) -> Protocol:
    """Return how a run's scores were measured, from its settings."""
    frames = run.table.env_steps * run.table.frames_per_step
    evaluated = "eval/return" in run.table.columns
    epsilon = run.setting("algo.eval_epsilon")
    measured = Protocol(
        noop_max=0, sticky=0.0, life_loss=None, frames=frames, max_frames=None, evaluation=None,
        epsilon=_number(epsilon) if evaluated else None,
        frame_skip=run.table.frames_per_step,
    )  # fmt: skip
    if run.env.startswith("MinAtar/"):
        sticky = run.setting("env.args.sticky", 0.1)
        minimal = run.setting("env.args.minimal_actions", not run.env.endswith("-v0"))
        return replace(measured, sticky=_number(sticky), actions=None if minimal else 6)
    return replace(
        measured,
        noop_max=_whole(run.setting("env.atari.noop_max")),
        sticky=_number(run.setting("env.atari.sticky")),
        life_loss=bool(run.setting("env.atari.episodic_life")),
        max_frames=_whole(run.setting("env.atari.max_frames")),
        frame_skip=_whole(run.setting("env.atari.frame_skip")),
    )


def _differences(ours: Protocol, theirs: Protocol) -> list[str]:
    """Return one line for every recorded point of the protocol that differs."""
    lines = []
    for key, name in _POINTS.items():
        here, there = getattr(ours, key), getattr(theirs, key)
        if there is None and key in _DECISIVE:
            lines.append(f"{name}: {short(here) if key == 'frames' else _evaluations(here)} here, not recorded there")
        elif there is None or (key == "epsilon" and here is None):
            continue
        elif key == "evaluation":
            if not set(here or ()) & set(there):
                lines.append(f"{name}: {_evaluations(here)} here, {_evaluations(there)} there")
        elif key == "frames":
            if abs(here - there) > FRAMES_TOLERANCE * there:
                lines.append(f"{name}: {short(here)} here, {short(there)} there")
        elif here != there:
            lines.append(f"{name}: {_shown(here)} here, {_shown(there)} there")
    if theirs.actions is not None and ours.actions != theirs.actions:
        lines.append(f"actions: those that the game uses here, all {theirs.actions} there")
    return lines


def _evaluations(kinds: Sequence[Evaluation] | None) -> str:
    return " or ".join(EVALUATIONS[kind] for kind in kinds or ()) or "no score"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _number(value: Any) -> float | None:
    """Return a number that a checked configuration could have; others are of a damaged one."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 10**12 else None


def _finite(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
