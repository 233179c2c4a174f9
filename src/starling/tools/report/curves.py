"""Curves of a chart: one per series of runs, with the interquartile mean over seeds and its bootstrap interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from starling.tools.report.groups import Group, Series
from starling.tools.report.metric_columns import Floats
from starling.tools.report.runs import Run
from starling.tools.statistics import interquartile_curve

POINTS = 160
"""Points of a drawn curve."""
Axis = Literal["steps", "time"]


@dataclass(frozen=True)
class Line:
    """Points of one run, or of the middle of several: x and y are [points]."""

    x: Floats
    y: Floats


@dataclass(frozen=True)
class Curve:
    """What a chart shows of one series.

    Attributes:
        series: index of the series in its group.
        label: its label.
        runs: the line of every run, with the run's name.
        middle: the IQM over seeds as far as all of them go; None if fewer than two seeds have values.
        low: lower bound of its 95% interval, at the same x.
        high: upper bound.
        seeds: number of seeds.
    """

    series: int
    label: str
    runs: tuple[tuple[str, Line], ...]
    middle: Line | None = None
    low: Floats | None = None
    high: Floats | None = None
    seeds: int = 1

    @property
    def main(self) -> tuple[Line, ...]:
        """The lines that stand for the series: the middle, or else every run."""
        return (self.middle,) if self.middle is not None else tuple(line for _, line in self.runs)


def curves_of(group: Group, key: str, axis: Axis, *, smooth: float = 0.0, factor: float = 1.0) -> list[Curve]:
    """Return the curves of one key in a group; series without values have none.

    Args:
        group: runs of one env.
        key: key of the column.
        axis: env steps, or seconds of training.
        smooth: weight of the past in an exponential moving average over the drawn points, in [0, 1).
        factor: the values are multiplied by it, and by the frames per step if it is NaN.

    Returns:
        One curve per series.
    """
    found = (_curve(number, series, key, axis, smooth, factor) for number, series in enumerate(group.series))
    return [curve for curve in found if curve is not None]


def _curve(number: int, series: Series, key: str, axis: Axis, smooth: float, factor: float) -> Curve | None:
    lines = {run.name: line for run in series.runs if (line := _line(run, key, axis, factor)) is not None}
    if not lines:
        return None
    seeds = [lines[run.name] for run in series.independent if run.name in lines]
    drawn = tuple((name, _smoothed_line(_thin(line), smooth)) for name, line in lines.items())
    if len(seeds) < 2:
        return Curve(number, series.label, drawn)
    start, end = max(line.x[0] for line in seeds), min(line.x[-1] for line in seeds)
    if not end > start:
        return Curve(number, series.label, drawn, seeds=len(seeds))
    points = min(POINTS, max(len(line.x) for line in seeds))
    grid = np.linspace(start, end, max(2, points))
    values = np.array([np.interp(grid, line.x, line.y) for line in seeds])
    middle, low, high = (smoothed(each, smooth) for each in interquartile_curve(values))
    return Curve(number, series.label, drawn, Line(grid, middle), low, high, len(seeds))


def _line(run: Run, key: str, axis: Axis, factor: float) -> Line | None:
    """Return the finite points of a column, sorted by x; None if there are none."""
    column = run.table.columns.get(key)
    if column is None:
        return None
    steps, seconds, values = column.points()
    x = steps if axis == "steps" else seconds
    known = np.isfinite(x) & np.isfinite(values)
    if not known.any():
        return None
    x, y = x[known], values[known] * (run.table.frames_per_step if math.isnan(factor) else factor)
    order = np.argsort(x, kind="stable")
    return Line(x[order], y[order])


def _thin(line: Line) -> Line:
    """Average neighboring points until at most `POINTS` are left."""
    if len(line.x) <= POINTS:
        return line
    parts = np.array_split(np.arange(len(line.x)), POINTS)
    return Line(*(np.array([values[part].mean() for part in parts]) for values in (line.x, line.y)))


def _smoothed_line(line: Line, weight: float) -> Line:
    return Line(line.x, smoothed(line.y, weight))


def smoothed(values: Floats, weight: float) -> Floats:
    """Exponential moving average without bias towards 0: (1 - w) Σ_k w^k y_{t-k} / (1 - w^{t+1})."""
    if weight <= 0:
        return values
    result, past, norm = np.empty_like(values), 0.0, 0.0
    for i, value in enumerate(values):
        past, norm = weight * past + (1 - weight) * value, weight * norm + (1 - weight)
        result[i] = past / norm
    return result
