"""Printed with every benchmark: the machine, package versions, and the spread of measurements."""

from __future__ import annotations

from statistics import median

from starling.tools.benchmark.machine import describe as describe


def spread(values: list[float]) -> dict[str, float]:
    """Median and extremes of repeated measurements."""
    return {"median": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)}
