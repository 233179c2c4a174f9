"""Sections of a report: runs, series, settings, events, videos."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from starling.config.dialect import dump, on_one_line
from starling.errors import cut
from starling.tools.report.groups import Group, Series, setting_differences
from starling.tools.report.markup import Child, Markup, join, tag
from starling.tools.report.runs import Run
from starling.tools.report.scale import duration, number
from starling.tools.statistics import bootstrap_interval, interquartile_mean

MOST_SETTINGS = 200
_LONGEST_SETTING = 200
_SHORT = 60  # characters of a cell that is not wrapped


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], numbers: Iterable[int] = ()) -> Markup:
    """Build a table whose first column names the row; columns in `numbers` are aligned to the right."""
    right = set(numbers)
    head = [tag("th", text, scope="col", class_="number" if i in right else None) for i, text in enumerate(heads)]
    body = [
        tag(
            "tr",
            tag("th", cells[0], scope="row"),
            [
                tag("td", cell, class_="number" if i in right else _text_class(cell))
                for i, cell in enumerate(cells[1:], 1)
            ],
        )
        for cells in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body))
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _text_class(cell: Child) -> str:
    return "text long" if isinstance(cell, str) and len(cell) > _SHORT and not isinstance(cell, Markup) else "text"


def details(title: str, *content: Child, is_open: bool = False) -> Markup:
    """Build a section that opens and closes."""
    return tag("details", tag("summary", tag("h3", title)), *content, open=is_open)


def runs_table(group: Group) -> Markup:
    """Build the table of all runs of a group: state, length, scores, and speed in steps and in frames."""
    heads = ["run", "series", "seed", "env steps", "frames", "time", "return", "evaluation", "updates", "steps/s"]
    heads += ["frames/s", "crashes", "state"]
    rows = [_run_row(run, series.label) for series in group.series for run in series.runs]
    caption = (
        "Runs: return is the mean of the last 100 training episodes, evaluation the last mean without exploration;"
        " speeds are means over the run"
    )
    return table(caption, heads, rows, numbers=range(3, len(heads) - 1))


def _run_row(run: Run, label: str) -> list[Child]:
    metrics, steps = run.table, run.table.env_steps
    speed = steps / metrics.seconds if metrics.seconds > 0 else None
    frames = None if speed is None else speed * metrics.frames_per_step
    counts = [number(steps), number(steps * metrics.frames_per_step), duration(metrics.seconds or None)]
    scores = [number(metrics.last(key)) for key in ("return", "eval/return", "updates")]
    speeds = [number(None if value is None else round(value)) for value in (speed, frames)]
    return [run.name, label, str(run.seed), *counts, *scores, *speeds, number(run.crashes), cut(run.status, 160)]


def series_table(group: Group) -> Markup | None:
    """Build the table of scores over seeds; None if no series has several."""
    if all(len(series.independent) < 2 for series in group.series):
        return None
    rows = [
        [series.label, number(len(series.independent)), *(_iqm(series, key) for key in ("return", "eval/return"))]
        for series in group.series
    ]
    caption = "Score over seeds at the end: interquartile mean (95% bootstrap interval)"
    return table(caption, ["series", "seeds", "return", "evaluation"], rows, numbers=(1, 2, 3))


def _iqm(series: Series, key: str) -> str:
    values = [
        value for run in series.independent if (value := run.table.last(key)) is not None and math.isfinite(value)
    ]
    if not values:
        return number(None)
    if len(values) == 1:
        return number(values[0])
    low, high = bootstrap_interval(interquartile_mean, values, rng=np.random.default_rng(0), resamples=1_000)
    return f"{number(round(interquartile_mean(values), 3))} ({number(round(low, 3))} to {number(round(high, 3))})"


def settings_part(group: Group) -> Markup:
    """Build the settings in which runs differ, and the configuration of every series."""
    parts: list[Child] = []
    found = {} if len(group.runs) < 2 else setting_differences(group.runs)
    if found:
        rows = [[key, *(_setting(value) for value in values)] for key, values in list(found.items())[:MOST_SETTINGS]]
        parts.append(table("Settings that differ", ["setting", *(run.name for run in group.runs)], rows))
    elif len(group.runs) > 1:
        parts.append(tag("p", "All runs have the same settings."))
    for series in group.series:
        text = dump({key: value for key, value in series.runs[0].settings.items() if key != "run"})
        parts.append(tag("details", tag("summary", f"All settings of {series.label}"), tag("pre", _lines(text))))
    return details("Configuration", *parts)


def _setting(value: object) -> str:
    return cut(value if isinstance(value, str) else on_one_line(value), _LONGEST_SETTING)


def _message(text: str) -> Markup:
    return tag("span", _lines(text), class_="message")


def _lines(text: str) -> Markup:
    """Escape a text of several lines and keep its newlines."""
    return Markup("\n".join(join(line) for line in text.split("\n")))


def events_part(group: Group) -> Markup | None:
    """Build the events of all runs; None if there are none."""
    rows: list[list[Child]] = []
    for run in group.runs:
        if run.earlier_events:
            rows.append([run.name, "", "", f"{run.earlier_events:,} earlier messages are in its log.txt"])
        for event in run.events:
            kind = tag("span", event.kind, class_=f"kind-{event.kind}")
            again = f" ({event.count:,} times)" if event.count > 1 else ""
            rows.append([run.name, event.time, kind, _message(event.text + again)])
    if not rows:
        return None
    bad = sum(event.kind in ("failure", "warning") for run in group.runs for event in run.events)
    told = f"Events: {bad} {'warning or failure' if bad == 1 else 'warnings and failures'}" if bad else "Events"
    return details(told, table("Messages of the logs", ["run", "time", "kind", "message"], rows), is_open=bad > 0)


def videos_part(group: Group) -> Markup | None:
    """Build the videos of all runs; None if there are none."""
    figures = []
    for run in group.runs:
        for video in run.videos:
            name = f"{run.name}: {video.name}"
            if video.moves:
                shown = tag(
                    "video", src=video.url, controls=True, loop=True, muted=True, playsinline=True, aria_label=name
                )
            else:
                shown = tag("img", src=video.url, alt=f"Recording of {name}", class_="still")
            figures.append(tag("figure", shown, tag("figcaption", name)))
    return details("Videos", tag("div", figures, class_="grid-of-charts"), is_open=True) if figures else None
