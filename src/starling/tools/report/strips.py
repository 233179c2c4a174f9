"""Draw strips of what limited the speed of runs, and maps of policies over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from starling.experiment.bottleneck import limiting_part
from starling.tools.report.curves import Axis
from starling.tools.report.markup import Markup, tag
from starling.tools.report.metric_columns import Floats
from starling.tools.report.runs import Run
from starling.tools.report.svg import BOTTOM, LEFT, WIDTH, Frame, x_ticks

LIMITS = {
    "learner": "learner",
    "actors": "actors",
    "inference": "inference server",
    "hub": "hub",
    "balance": "actors and learner wait for each other, or both are busy",
    "none": "no clear limit",
}
"""What each part of a strip means."""
_NAME, _BAR = 13.0, 12.0
"""Heights of a strip's name and of the strip."""
_COLUMNS, _LEVELS = 48, 10


@dataclass(frozen=True)
class Strip:
    """One strip: its name, and spans (start, end, part, text) in values of the x-axis."""

    name: str
    spans: tuple[tuple[float, float, str, str], ...]


def strip_of(run: Run, axis: Axis) -> Strip:
    """Return what limited a run, neighboring spans with the same part joined."""
    spans: list[tuple[float, float, str, str]] = []
    for limit in run.table.limits:
        start, end = limit.steps if axis == "steps" else limit.seconds
        part = limiting_part(limit.text)
        if spans and spans[-1][2] == part:
            start = spans.pop()[0]
        spans.append((start, end, part, limit.text))
    return Strip(run.name, tuple(span for span in spans if span[1] > span[0]))


def draw_strips(strips: Sequence[Strip], axis: Axis, *, label: str) -> Markup:
    """Draw one strip per run, colored by what limited its speed; `label` describes them to a screen reader."""
    row = _NAME + _BAR + 5
    frame = Frame(0.0, max((span[1] for strip in strips for span in strip.spans), default=0.0) or 1.0, 0.0, 1.0)
    drawn: list[Markup] = []
    for number, strip in enumerate(strips):
        top = number * row
        drawn.append(tag("text", strip.name, class_="tick start", x=LEFT, y=top + _NAME - 2))
        for start, end, part, text in strip.spans:
            x, width = frame.x(start), max(0.5, frame.x(end) - frame.x(start))
            area = {"x": round(x, 1), "y": top + _NAME + 1, "width": round(width, 1), "height": _BAR}
            drawn.append(tag("g", tag("title", text), tag("rect", class_=f"limit {part}", **area)))
    height = row * len(strips)
    drawn += x_ticks(frame, axis, height)
    box = f"0 0 {WIDTH:g} {height + BOTTOM - 8:g}"
    return tag("svg", drawn, viewBox=box, role="img", aria_label=label, class_="strip", data_axis=axis)


def draw_map(rows: Sequence[tuple[str, Floats, Floats]], axis: Axis, *, label: str) -> Markup:
    """Draw one row per policy (name, x, values), the darker the larger the value."""
    row = 9.0 if len(rows) > 12 else 14.0
    frame = Frame(0.0, max(float(x.max()) for _, x, _ in rows) or 1.0, 0.0, 1.0)
    low, high = min(float(y.min()) for _, _, y in rows), max(float(y.max()) for _, _, y in rows)
    edges = np.linspace(0.0, frame.x1, _COLUMNS + 1)
    width = round(frame.x(edges[1]) - LEFT, 2)
    drawn: list[Markup] = []
    for number, (name, x, y) in enumerate(rows):
        top = number * row
        if len(rows) <= 12 or number % 4 == 0:
            drawn.append(tag("text", name, class_="tick end", x=LEFT - 5, y=top + row - 2))
        for left, right in pairwise(edges):
            inside = (x > left) & (x <= right)
            if not inside.any():
                continue
            value = float(y[inside].mean())
            level = round((_LEVELS - 1) * (value - low) / (high - low)) if high > low else 0
            cell = tag("rect", x=round(frame.x(left), 1), y=top, width=width, height=row - 1, class_=f"level l{level}")
            drawn.append(tag("g", tag("title", f"policy {name}: {value:.4g}"), cell))
    height = row * len(rows)
    drawn += x_ticks(frame, axis, height)
    box = f"0 0 {WIDTH:g} {height + BOTTOM - 8:g}"
    return tag("svg", drawn, viewBox=box, role="img", aria_label=label, class_="map", data_axis=axis)
