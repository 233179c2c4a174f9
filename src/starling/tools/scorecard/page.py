"""The scorecard as a part of a report's page."""

from __future__ import annotations

from starling.tools.report.groups import Group
from starling.tools.report.markup import Child, Markup, tag
from starling.tools.report.scale import number
from starling.tools.report.tables import details, table
from starling.tools.scorecard.scorecard import EVALUATIONS, Card, Comparison, Score, cards_of


def scorecard_part(group: Group) -> Markup | None:
    """Build the scorecards of a group; None if its env has no published scores."""
    parts = [part for card in cards_of(group) for part in _card(card)]
    return details(f"Scorecard: {group.title}", *parts, is_open=True) if parts else None


def _card(card: Card) -> list[Markup]:
    speeds = f"{number(_rounded(card.steps_per_s))} steps/s, {number(_rounded(card.frames_per_s))} frames/s"
    scores = "; ".join(f"{EVALUATIONS[score.kind]}: {score_text(score)}" for score in card.scores)
    rows = [_row(comparison) for comparison in card.comparisons]
    heads = ["column", "published", "human-normalized", "this run", "human-normalized", "ratio", "protocol"]
    caption = f"{card.series.label} beside published scores; a ratio only where the protocols agree"
    return [
        tag("p", tag("b", card.series.label), f": {scores} ({speeds})"),
        table(caption, heads, rows, numbers=range(1, 6)),
    ]


def _row(comparison: Comparison) -> list[Child]:
    ours = comparison.score
    mine = [number(None), number(None)] if ours is None else [number(round(ours.value, 2)), percent(ours.normalized)]
    verdict = tag("span", comparison.verdict, class_="yes" if comparison.is_comparable else None)
    shown = mine if comparison.is_comparable else [number(None), number(None)]
    theirs = [number(comparison.value), percent(comparison.normalized)]
    ratio = number(None) if comparison.ratio is None else f"{comparison.ratio:.2f}"
    return [comparison.column.name, *theirs, *shown, ratio, verdict]


def score_text(score: Score) -> str:
    """Format a score over seeds with its interval and its human-normalized value."""
    interval = (
        ""
        if score.interval is None
        else f" ({number(round(score.interval[0], 2))} to {number(round(score.interval[1], 2))})"
    )
    seeds = "1 seed" if score.seeds == 1 else f"IQM of {score.seeds} seeds"
    normal = "" if score.normalized is None else f", human-normalized {percent(score.normalized)}"
    return f"{number(round(score.value, 2))}{interval}, {seeds}{normal}"


def percent(value: float | None) -> str:
    """Format a share as percent."""
    return number(None) if value is None else f"{value:.1%}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value)
