"""Draw curves with bands as SVG.

Colors and dashes are classes of the page's style sheet, so that one drawing serves a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starling.tools.report.columns import Floats
from starling.tools.report.curves import Axis, Curve, Line
from starling.tools.report.markup import Markup, tag
from starling.tools.report.scale import duration, short, ticks, time_ticks

WIDTH, HEIGHT = 420.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 10.0, 30.0
COLORS = 8
"""Colors of the style sheet; more series repeat them with other dashes."""


@dataclass(frozen=True)
class Frame:
    """The area of a chart, and the values at its edges."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def points(self, x: Floats, y: Floats) -> list[str]:
        """Return the points as "x y" in tenths of a unit."""
        across = LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)
        return [f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True)]


def color_class(series: int) -> str:
    """Return the classes of a series: its color, and from the ninth on another dash."""
    return f"s{series % COLORS} d{min(series // COLORS, 3)}"


def draw_curves(curves: Sequence[Curve], axis: Axis, *, label: str) -> Markup:
    """Draw curves over env steps or seconds; `label` describes the chart to a screen reader."""
    frame = _frame(curves, axis)
    return tag(
        "svg",
        *_grid(frame, axis),
        *(_curve(curve, frame) for curve in curves),
        tag("line", class_="cursor", x1=LEFT, x2=LEFT, y1=TOP, y2=HEIGHT - BOTTOM, visibility="hidden"),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=label, tabindex=0, class_="plot", data_axis=axis,
        data_x=f"{frame.x0!r} {frame.x1!r}", data_y=f"{frame.y0!r} {frame.y1!r}",
        data_area=f"{LEFT:g} {TOP:g} {WIDTH - RIGHT:g} {HEIGHT - BOTTOM:g}",
    )  # fmt: skip


def _frame(curves: Sequence[Curve], axis: Axis) -> Frame:
    lines = [line for curve in curves for line in (*curve.main, *(line for _, line in curve.runs))]
    low, high = min(float(line.y.min()) for line in lines), max(float(line.y.max()) for line in lines)
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            low, high = min(low, float(curve.low.min())), max(high, float(curve.high.max()))
    is_constant = high - low <= 1e-9 * max(abs(low), abs(high))
    margin = (abs(high) * 0.1 or 1.0) if is_constant else 0.04 * (high - low)
    bottom = 0.0 if 0 <= low < 0.3 * high else low - margin
    end = max(float(line.x.max()) for line in lines)
    return Frame(0.0, end or 1.0, bottom, high + margin)


def _grid(frame: Frame, axis: Axis) -> list[Markup]:
    drawn = []
    for value in ticks(frame.y0, frame.y1):
        y = round(frame.y(value), 1)
        drawn.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        drawn.append(tag("text", short(value), class_="tick end", x=LEFT - 5, y=y + 4))
    return [*drawn, *x_ticks(frame, axis, HEIGHT - BOTTOM)]


def x_ticks(frame: Frame, axis: Axis, y: float) -> list[Markup]:
    """Draw the ticks of the x-axis, which is at `y`."""
    found = ticks(frame.x0, frame.x1) if axis == "steps" else time_ticks(frame.x1)
    written: Callable[[float], str] = short if axis == "steps" else duration
    drawn = []
    for value in found:
        x = round(frame.x(value), 1)
        where = "end" if x > WIDTH - 30 else "middle"
        drawn.append(tag("line", class_="grid", x1=x, x2=x, y1=y, y2=y + 4))
        drawn.append(tag("text", written(value), class_=f"tick {where}", x=x, y=y + 16))
    return drawn


def _curve(curve: Curve, frame: Frame) -> Markup:
    name = f"{curve.label}, IQM of {curve.seeds} seeds" if curve.middle is not None else curve.label
    thin = "run thin" if curve.middle is not None else "run"
    drawn = []
    if curve.middle is not None and curve.low is not None and curve.high is not None:
        drawn.append(tag("path", class_="band", d=_band(frame, curve.middle.x, curve.low, curve.high)))
    for run, line in curve.runs:
        told = run if len(curve.runs) > 1 else curve.label
        drawn.append(_path(frame, line, thin, None if curve.middle is not None else told))
    if curve.middle is not None:
        drawn.append(_path(frame, curve.middle, "middle", name))
    return tag("g", drawn, class_=f"series {color_class(curve.series)}", data_series=curve.series)


def _path(frame: Frame, line: Line, kind: str, name: str | None) -> Markup:
    """Draw a line, or a dot if it has one point; a line with a name is read out at the cursor."""
    points = frame.points(line.x, line.y)
    d = f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h.01"
    return tag("path", class_=f"line {kind}{'' if len(points) > 1 else ' dot'}", d=d, data_name=name)


def _band(frame: Frame, x: Floats, low: Floats, high: Floats) -> str:
    return f"M{'L'.join([*frame.points(x, high), *reversed(frame.points(x, low))])}Z"


def swatch(series: int) -> Markup:
    """Draw the line of a series for a legend."""
    line = tag("path", class_="line middle", d="M1 6H23")
    group = tag("g", line, class_=f"series {color_class(series)}")
    return tag("svg", group, viewBox="0 0 24 12", class_="swatch", aria_hidden="true")


def describe(curves: Sequence[Curve], title: str) -> str:
    """Describe a chart in words: the first and the last value of every series."""
    told = []
    for curve in curves:
        line = curve.main[0]
        ends = f"from {short(float(line.y[0]))} to {short(float(line.y[-1]))}"
        seeds = f" (IQM of {curve.seeds} seeds)" if curve.middle is not None else ""
        told.append(f"{curve.label}{seeds} {ends}")
    return f"{title}: {'; '.join(told)}"
