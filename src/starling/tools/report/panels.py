"""Which charts a report has, by panel: every numeric key of its runs is in exactly one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starling.experiment.run_folder.metric_keys import (
    EVAL,
    FAILURES,
    LEDGER,
    LOSSES_OF_SOURCES,
    PROGRESS,
    STORE,
    TIME,
    Metric,
    find,
)
from starling.tools.report.columns import SPEED_ROWS, STEPS_PER_S, UPDATES_PER_S
from starling.tools.report.groups import Group

MOST_CHARTS = 80
"""Charts of one panel; keys beyond are named, not drawn."""

TITLES = {
    "return": "Return", "episode_length": "Episode length", "episodes": "Episodes", "updates": "Updates",
    "episode_longest": "Longest episode", "eval/return": "Return in evaluation", "eval/length": "Length in evaluation",
    "eval/return_std": "Spread in evaluation", "explore/epsilon": "Epsilon", "loss/q": "Q loss",
    "loss/q_values": "Q values", "loss/policy": "Policy loss", "loss/value": "Value loss", "loss/entropy": "Entropy",
    "loss/critic": "Critic loss", "loss/actor": "Actor loss", "loss/temperature": "Temperature", "loss/kl": "KL",
    "loss/explained_variance": "Explained variance", "learner/lag": "Age of experience in updates",
    "learner/lag_steps": "Age of experience in env steps", "loss/clipped": "Clipped ratios",
    "loss/off_policy": "Off-policy", "loss/rho": "Importance ratio", "loss/delta_q_first": "ΔQ, first step",
    "loss/delta_q_last": "ΔQ, last step", "eval/arm": "Best policy", "time/learner/busy": "Learner busy",
    "time/learner/wait_in": "Learner waits for batches", "time/actors/busy": "Actors busy",
    "time/actors/wait_out": "Actors wait for the learner", "time/actors/wait_in": "Actors wait for actions",
    "time/inference/busy": "Inference busy", "time/hub/busy": "Hub busy",
    "learner/OPTIMIZER/gradient_norm": "Gradient norm", "learner/OPTIMIZER/learning_rate": "Learning rate",
}  # fmt: skip
"""Titles of charts by the key of the reference; others have their key."""
SCORE = ("return", "eval/return", "episode_length", "eval/NAME")
STALENESS = (
    "learner/lag", "learner/lag_steps", "loss/clipped", "loss/off_policy", "loss/rho", "loss/delta_q_first",
    "loss/delta_q_last", "loss/relevant",
)  # fmt: skip
MAIN_LOSSES = (
    "loss/q", "loss/q_values", "loss/policy", "loss/value", "loss/critic", "loss/actor", "loss/entropy",
    "explore/epsilon", "learner/OPTIMIZER/learning_rate", "learner/OPTIMIZER/gradient_norm",
)  # fmt: skip
CURIOSITY = ("loss/curiosity/STREAM", "loss/reward/STREAM", "loss/novelty", "loss/lifelong", "loss/embedding")
ARMS = ("eval/arm/N/return", "eval/arm/N/share")
"""Keys that are drawn as a map over policies and time, not as curves."""
SPEED_KEYS = (
    "time/learner/busy", "time/learner/wait_in", "time/actors/busy", "time/actors/wait_in", "time/actors/wait_out",
    "time/inference/busy", "time/hub/busy",
)  # fmt: skip
LOSSES, SPEED = "Losses, values, and exploration", "Speed"
PANELS: dict[str, tuple[tuple[str, ...], bool]] = {
    "Score": (SCORE, True),
    LOSSES: (MAIN_LOSSES, True),
    SPEED: (SPEED_KEYS, True),
    "Staleness": (STALENESS, True),
    "Curiosity": (CURIOSITY, True),
    "Losses per source": ((), False),
    "Episodes and evaluations": ((), False),
    "Replay and other tables": ((), False),
    "Faults, ledger, and time": ((), False),
    "Everything else": ((), False),
}
"""Panels in their order: the keys of the reference that come first in each, and whether it is open."""
_SECTIONS = {
    "Episodes and evaluations": (PROGRESS, EVAL),
    "Replay and other tables": (STORE,),
    "Faults, ledger, and time": (TIME, LEDGER, FAILURES),
}
_DERIVED = {
    STEPS_PER_S: ("Env steps per second", f"Over {SPEED_ROWS} rows of metrics, with evaluations and checkpoints"),
    UPDATES_PER_S: ("Updates per second", f"Over {SPEED_ROWS} rows of metrics"),
}


@dataclass(frozen=True)
class Chart:
    """One chart: the column it shows, its title, the unit, and what it means."""

    key: str
    title: str
    unit: str
    about: str
    factor: float = 1.0  # of the values; NaN: the frames per step


@dataclass(frozen=True)
class Panel:
    """Charts under one heading; `is_open` if they are shown without a click."""

    title: str
    charts: tuple[Chart, ...]
    is_open: bool = True
    left_out: tuple[str, ...] = ()


def panels_of(group: Group) -> list[Panel]:
    """Return the panels of a group that have charts."""
    chosen: dict[str, list[str]] = {title: [] for title in PANELS}
    for key in _with_values(group):
        metric = find(key)
        if metric is None or metric.key not in ARMS:
            chosen[_panel_of(key, metric)].append(key)
    panels = [_panel(title, keys) for title, keys in chosen.items()]
    with_speeds = [_with_speeds(panel, group) if panel.title == SPEED else panel for panel in panels]
    return [panel for panel in with_speeds if panel.charts]


def _panel(title: str, keys: list[str]) -> Panel:
    order, is_open = PANELS[title]
    ranks = {key: rank for rank, key in enumerate(order)}
    ranked = sorted(keys, key=lambda key: (ranks.get(_reference(key, find(key)), len(ranks)), key))
    charts = tuple(_chart(key, find(key)) for key in ranked[:MOST_CHARTS])
    return Panel(title, charts, is_open, tuple(ranked[MOST_CHARTS:]))


def _panel_of(key: str, metric: Metric | None) -> str:
    """Return the title of the panel that a key belongs to."""
    reference = _reference(key, metric)
    for title in ("Score", "Staleness", "Curiosity", LOSSES, SPEED):
        if reference in PANELS[title][0]:
            return title
    if metric in LOSSES_OF_SOURCES.metrics:
        return "Losses per source"
    if key.startswith(("loss/", "explore/")):
        return LOSSES
    for title, sections in _SECTIONS.items():
        if any(metric in section.metrics for section in sections):
            return title
    return "Everything else"


def _with_values(group: Group) -> list[str]:
    """Return the keys of which some run has a value, in the order of their first row, without the derived ones."""
    keys = dict.fromkeys(
        key for run in group.runs for key, column in run.table.columns.items() if column.count and key not in _DERIVED
    )
    return list(keys)


def _with_speeds(panel: Panel, group: Group) -> Panel:
    charts = []
    for key, (title, about) in _DERIVED.items():
        if not any(key in run.table.columns for run in group.runs):
            continue
        charts.append(Chart(key, title, "per second", about))
        if key == STEPS_PER_S:
            skips = sorted({run.table.frames_per_step for run in group.runs})
            times = " or ".join(map(str, skips))
            told = f"Env steps per second times the env's frame skip ({times})"
            charts.append(Chart(key, "Frames per second", "per second", told, math.nan))
    return Panel(panel.title, (*charts, *panel.charts), panel.is_open, panel.left_out)


def _chart(key: str, metric: Metric | None) -> Chart:
    reference = _reference(key, metric)
    title = TITLES.get(reference, key)
    if metric is None:
        return Chart(key, title, "", "Not in the reference: of your own algorithm?")
    if metric.has_placeholder and reference in TITLES:
        title = f"{title} ({key.split('/')[1]})"
    return Chart(key, title, metric.unit.name, metric.meaning.replace("`", ""))


def _reference(key: str, metric: Metric | None) -> str:
    """Return the key of the reference, with placeholders; the key itself if it is not in there."""
    return key if metric is None else metric.key
