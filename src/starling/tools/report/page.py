"""The page of a report: one HTML file that loads nothing, and whose only script and style are Starling's own."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files

import numpy as np

from starling.errors import cut
from starling.tools.report.curves import Axis, curves_of
from starling.tools.report.groups import Group
from starling.tools.report.markup import Child, Markup, join, tag
from starling.tools.report.panels import ARMS, SPEED, Chart, Panel, panels_of
from starling.tools.report.sections import (
    details,
    events_part,
    runs_table,
    series_table,
    settings_part,
    videos_part,
)
from starling.tools.report.strips import LIMITS, draw_map, draw_strips, strip_of
from starling.tools.report.svg import describe, draw_curves, swatch
from starling.tools.scorecard.card_section import scorecard_part

AXES: tuple[tuple[Axis, str], ...] = (("steps", "env steps"), ("time", "training time"))
_MOST_ARMS = 64


@dataclass(frozen=True)
class Live:
    """The additions of a page that keeps itself up to date.

    Attributes:
        now: its first section.
        style: style sheet in addition to the report's.
        script: script in addition to the report's.
    """

    now: Markup
    style: str
    script: str


def build_page(
    groups: Sequence[Group], missing: Sequence[str] = (), *, smooth: float = 0.0, live: Live | None = None
) -> str:
    """Build the whole page.

    Args:
        groups: runs, sorted by env.
        missing: one line for every run that could not be read.
        smooth: smoothing at first, in [0, 1).
        live: additions of a page that asks the address it came from for news; a report loads nothing.

    Returns:
        HTML.
    """
    style = Markup(read_asset("report.css") + ("" if live is None else live.style))
    script = Markup(read_asset("report.js") + ("" if live is None else live.script))
    name, own = (
        ("Report", "") if live is None else ("Watch", "; connect-src 'self'; img-src 'self' data:; media-src 'self'")
    )
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
        f"{own or '; img-src data:; media-src data:'}; base-uri 'none'; form-action 'none'"
    )
    titles = cut(", ".join(group.title for group in groups), 80)
    made = f"Starling {version('starling-rl')}, {time.strftime('%Y-%m-%d %H:%M')}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{name}: {titles or 'no runs yet'}"),
        None if live is None else tag("link", rel="icon", href="data:,"),  # else a browser asks for /favicon.ico
        tag("style", style),
    )
    body = tag(
        "body",
        tag("a", "Skip to the charts", class_="skip", href="#main"),
        _header(f"Starling {name.lower()}", groups, missing, is_live=live is not None),
        None if live is None else live.now,
        _controls(smooth),
        tag("main", [_group(group, number) for number, group in enumerate(groups)], id="main"),
        tag("footer", f"{made}. This page loads nothing." if live is None else f"{made}."),
        tag("script", script),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def read_asset(name: str, package: str = "starling.tools.report") -> str:
    """Read a style sheet or a script of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _header(title: str, groups: Sequence[Group], missing: Sequence[str], *, is_live: bool) -> Markup:
    runs = [run for group in groups for run in group.runs]
    going = sum(run.is_running for run in runs)
    told = [_count(len(runs), "run"), _count(len(groups), "environment")]
    if going:
        told.append(f"{going} in progress")
    problems = [*missing, *(f"{run.name}: {problem}" for run in runs for problem in run.problems)]
    parts: list[Child] = [tag("h1", title), tag("p", ", ".join(told), class_="muted")]
    if is_live:
        parts.append(tag("p", "Needs JavaScript to show what is new.", id="live", role="status", class_="small"))
    if len(groups) > 1:
        links = [tag("li", tag("a", group.title, href=f"#group-{i}")) for i, group in enumerate(groups)]
        parts.append(tag("nav", tag("ul", links, class_="plain"), aria_label="Environments"))
    if problems:
        lines = tag("ul", [tag("li", line) for line in problems], class_="plain")
        parts.append(tag("div", tag("h2", "Missing or damaged"), lines, class_="card problems", role="note"))
    return tag("header", parts)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _controls(smooth: float) -> Markup:
    """Build the controls; they are hidden until the script runs."""
    choices = [
        tag("label", tag("input", type="radio", name="axis", value=axis, checked=axis == "steps"), name)
        for axis, name in AXES
    ]
    slider = tag("input", type="range", id="smooth", min=0, max=0.99, step=0.01, value=f"{smooth:g}")
    return tag(
        "div",
        tag("fieldset", tag("legend", "x-axis:"), choices),
        tag("label", "smoothing", slider, tag("output", f"{smooth:g}", id="smooth-value", for_="smooth")),
        tag("label", tag("input", type="checkbox", id="each", checked=True), "every seed"),
        class_="controls", role="group", aria_label="Charts", hidden=True,
    )  # fmt: skip


def _group(group: Group, number: int) -> Markup:
    name = f"group-{number}"
    legend = [
        tag("li", tag("button", swatch(i), series.label, type="button", aria_pressed="true", data_series=i))
        for i, series in enumerate(group.series)
    ]
    same = [run.name for series in group.series for run in series.runs if run not in series.independent]
    note = f"Not in any band, since another run has the same seed: {', '.join(same)}." if same else None
    return tag(
        "section",
        tag("h2", group.title, id=name),
        tag("ul", legend, class_="legend", aria_label="Series, click to hide"),
        tag(
            "div",
            series_table(group),
            runs_table(group),
            tag("p", note, class_="small") if note else None,
            class_="card",
        ),
        videos_part(group),
        [join(_panel(group, panel), _limits(group) if panel.title == SPEED else None) for panel in panels_of(group)],
        _arms(group),
        scorecard_part(group),
        events_part(group),
        settings_part(group),
        aria_labelledby=name,
    )


def _panel(group: Group, panel: Panel) -> Markup:
    charts = [drawn for chart in panel.charts if (drawn := _chart(group, chart)) is not None]
    more = f"Not drawn: {', '.join(panel.left_out[:50])}" if panel.left_out else None
    note = tag("p", cut(more, 2_000), class_="small muted") if more else None
    return details(panel.title, tag("div", charts, class_="grid-of-charts"), note, is_open=panel.is_open)


def _chart(group: Group, chart: Chart) -> Markup | None:
    drawn = []
    for axis, name in AXES:
        curves = curves_of(group, chart.key, axis, factor=chart.factor)
        if curves:
            svg = draw_curves(curves, axis, label=f"{describe(curves, chart.title)}. Over {name}.")
            drawn.append(_on_axis(axis, svg))
        elif axis == "steps":
            return None
        else:
            drawn.append(_on_axis(axis, tag("p", "The rows have no times.", class_="muted small")))
    caption = tag("figcaption", tag("h4", chart.title), tag("code", chart.key, class_="muted"), _unit(chart.unit))
    readout = tag("output", class_="readout", aria_live="polite")
    return tag("figure", caption, tag("p", chart.about, class_="about"), drawn, readout)


def _unit(unit: str) -> Markup | None:
    return tag("span", unit, class_="muted small") if unit and unit not in ("learning rate", "text") else None


def _on_axis(axis: Axis, content: Markup) -> Markup:
    return tag("div", content, data_on_axis=axis, hidden=axis != "steps")


def _limits(group: Group) -> Markup | None:
    """Build the strips of what limited each run, with their shares of the time in words."""
    runs = [run for run in group.runs if run.table.limits]
    if not runs:
        return None
    told, seen = [], set[str]()
    for run in runs:
        shares: dict[str, float] = {}
        for start, end, part, _ in strip_of(run, "time").spans:
            shares[part] = shares.get(part, 0.0) + end - start
        seen |= shares.keys()
        whole = sum(shares.values()) or 1.0
        parts = ", ".join(f"{part} {share / whole:.0%}" for part, share in sorted(shares.items(), key=lambda s: -s[1]))
        told.append(tag("li", tag("b", run.name), f": {parts or 'no times'}. Last: {run.table.limits[-1].text}"))
    drawn = []
    for axis, name in AXES:
        strips = [strip_of(run, axis) for run in runs]
        drawn.append(
            _on_axis(axis, draw_strips(strips, axis, label=f"What limited the speed of each run, over {name}"))
        )
    keys = [tag("li", tag("span", class_=f"key {part}"), text) for part, text in LIMITS.items() if part in seen]
    figure = tag("figure", tag("ul", keys, class_="keys"), drawn)
    words = tag("ul", told, class_="plain small")
    return details("What limited the speed", tag("div", figure, words, class_="limits"), is_open=True)


def _arms(group: Group) -> Markup | None:
    """Build maps of the policies of a bandit: its returns and shares over time."""
    figures = []
    for run in group.runs:
        for pattern, what in zip(ARMS, ("Return", "Share of trials"), strict=True):
            before, after = pattern.split("N")
            arm_of = re.compile(f"{re.escape(before)}([0-9]{{1,9}}){re.escape(after)}")
            arms = sorted((found[1] for key in run.table.columns if (found := arm_of.fullmatch(key))), key=int)
            columns = [(arm, run.table.columns[f"{before}{arm}{after}"].points()) for arm in arms[:_MOST_ARMS]]
            columns = [(arm, at[:, np.isfinite(at).all(0)]) for arm, at in columns]  # a damaged row may lack its time
            columns = [(arm, at) for arm, at in columns if at.size]
            if not columns:
                continue
            drawn = [
                _on_axis(
                    axis, draw_map([(arm, at[row], at[2]) for arm, at in columns], axis, label=f"{what}, {run.name}")
                )
                for row, (axis, _) in enumerate(AXES)
            ]
            figures.append(tag("figure", tag("figcaption", tag("h4", f"{what} of each policy, {run.name}")), drawn))
    if not figures:
        return None
    note = tag("p", "One row per policy of the bandit, the darker the larger.", class_="small muted")
    return details("Policies of the bandit", note, tag("div", figures, class_="grid-of-charts"), is_open=True)
