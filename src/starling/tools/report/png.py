"""Write charts as PNG images with matplotlib (extra `report`), without a window and without pyplot's global state."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starling.errors import UserError
from starling.experiment.run_folder.disk import publish
from starling.matplotlib_import import import_matplotlib
from starling.tools.report.curves import Axis, Curve, curves_of
from starling.tools.report.groups import Group
from starling.tools.report.panels import Chart, panels_of
from starling.tools.report.scale import duration, short

COLORS = ("#0b62c4", "#c2410c", "#0f766e", "#a21caf", "#866000", "#be123c", "#4a7a0c", "#475569")
_DASHES = ("-", "--", ":", "-.")
_AXES: dict[Axis, str] = {"steps": "env steps", "time": "training time"}


def check_matplotlib() -> None:
    """Import matplotlib; raise `UserError` if it is not installed."""
    try:
        import_matplotlib()
    except ModuleNotFoundError:
        raise UserError("images need matplotlib: pip install 'starling-rl[report]', or leave out --png") from None


def write_images(groups: Sequence[Group], folder: Path, *, smooth: float = 0.0) -> list[Path]:
    """Write every chart of the open panels over env steps, and the scores over time too; returns the files."""
    check_matplotlib()
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for group in groups:
            for panel in panels_of(group):
                axes: tuple[Axis, ...] = ("steps", "time") if panel.title == "Score" else ("steps",)
                for chart in panel.charts if panel.is_open else ():
                    for axis in axes:
                        curves = curves_of(group, chart.key, axis, smooth=smooth, factor=chart.factor)
                        if curves:
                            file = folder / _file_name(group, chart, axis, {path.name for path in written})
                            publish(file, draw(curves, axis, title=f"{chart.title}, {group.title}", unit=chart.unit))
                            written.append(file)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --png") from None
    return written


def draw(curves: Sequence[Curve], axis: Axis, *, title: str, unit: str) -> bytes:
    """Draw curves as PNG."""
    import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 4.5), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.09, 0.13, 0.88, 0.78))  # fixed, since a layout engine takes twice the time
    for curve in curves:
        _draw_curve(axes, curve)
    written = short if axis == "steps" else duration
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel(_AXES[axis])
    axes.set_ylabel(plain(unit or "value"))
    axes.set_title(plain(title))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _draw_curve(axes: Any, curve: Curve) -> None:
    style = {"color": COLORS[curve.series % len(COLORS)], "linestyle": _DASHES[curve.series % len(_DASHES)]}
    label = plain(curve.label)
    if curve.middle is None:
        for i, (_, line) in enumerate(curve.runs):
            marker = "o" if len(line.x) == 1 else None
            axes.plot(line.x, line.y, label=label if i == 0 else None, marker=marker, linewidth=1.6, **style)
        return
    for _, line in curve.runs:
        axes.plot(line.x, line.y, alpha=0.4, linewidth=0.7, color=style["color"])
    axes.fill_between(curve.middle.x, curve.low, curve.high, color=style["color"], alpha=0.16, linewidth=0)
    told = f"{label} (IQM of {curve.seeds} seeds, 95% interval)"
    axes.plot(curve.middle.x, curve.middle.y, label=told, linewidth=1.8, **style)


def plain(text: str) -> str:
    """Return a text that matplotlib draws as it stands: no mathtext, no hidden labels."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.replace("$", r"\$").removeprefix("_")


def _file_name(group: Group, chart: Chart, axis: Axis, taken: set[str]) -> str:
    factor = "" if chart.factor == 1.0 else "-frames"
    over = "" if axis == "steps" else "-over-time"
    stem = re.sub(r"[^\w=.-]+", "-", f"{group.title}-{chart.key}", flags=re.ASCII).strip("-.")[:150]
    name = f"{stem}{factor}{over}.png"
    number = 2
    while name in taken:
        name, number = f"{stem}{factor}{over}-{number}.png", number + 1
    return name
