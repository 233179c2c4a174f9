"""Compare rows of metrics with the reference of all keys."""

from __future__ import annotations

import math
from typing import Any

from starling.experiment.run_folder.metric_keys import METRICS, TEXT, Metric, Unit

ROUNDING = 1e-6
"""How far a value may be outside the limits of its unit."""
NULL_BEFORE_AN_EPISODE = {"return", "episode_length", "episode_longest"}


def entries(key: str) -> list[Metric]:
    """The entries that a key matches; one without placeholders takes precedence."""
    return [metric for metric in METRICS if metric.key == key] or [
        metric for metric in METRICS if metric.has_placeholder and metric.matches(key)
    ]


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row: keys without exactly one entry, and values that their unit does not allow."""
    found = []
    for key, value in row.items():
        match entries(key):
            case [metric]:
                null = value is None and key in NULL_BEFORE_AN_EPISODE and row["episodes"] == 0
                if not (null or allows(metric.unit, value)):
                    found.append(f"{key}={value!r} is not in {metric.unit}")
            case several:
                found.append(f"{key} has {len(several)} entries: {[metric.key for metric in several]}")
    return found


def allows(unit: Unit, value: Any) -> bool:
    """Return True if a unit allows a value."""
    if unit == TEXT:
        return isinstance(value, str)
    number = type(value) is int if unit.whole else type(value) in (int, float) and math.isfinite(value)
    low = -math.inf if unit.low is None else unit.low
    high = math.inf if unit.high is None else unit.high
    return number and low - ROUNDING <= value <= high + ROUNDING
