"""Scales of charts: round ticks, and numbers and times as a reader writes them."""

from __future__ import annotations

import math

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_TIME_STEPS = (
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY,
)  # fmt: skip


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return up to `most` round numbers in [low, high]: multiples of 1, 2, or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next((power * m for m in (1, 2, 5, 10, 20, 50) if span / (power * m) <= most), span)
    return _multiples(step, low, high)


def time_ticks(high: float, most: int = 5) -> list[float]:
    """Return up to `most` + 1 round times in [0, high], all in seconds."""
    step = next((step for step in _TIME_STEPS if high / step <= most), None)
    if step is None:
        step = _DAY * max(1, math.ceil(high / _DAY / most))
    return _multiples(step, 0.0, high)


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, min(last, first + 100) + 1)]


def short(value: float) -> str:
    """Format a number for an axis: 1.5M, 20k, 0.25, 1e-05."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        return f"{value:.2g}"
    for unit, suffix in _SUFFIXES:
        if size >= unit * 0.9995:
            return f"{_trimmed(value / unit)}{suffix}"
    return _trimmed(value)


def _trimmed(value: float) -> str:
    written = f"{value:.4g}"
    return written if "e" not in written else f"{value:.0f}"


def number(value: float | None) -> str:
    """Format a value for a table: four digits, thousands separated, - for a missing one."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 100 <= abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Format a time: 45 s, 12 min, 3 h 20 min, 2 d 5 h."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    if seconds < _HOUR:
        whole, rest = divmod(round(seconds), 60)
        return f"{whole} min" + (f" {rest} s" if rest and whole < 10 else "")
    if seconds < _DAY:
        whole, rest = divmod(round(seconds / _MINUTE), 60)
        return f"{whole} h" + (f" {rest} min" if rest else "")
    whole, rest = divmod(round(seconds / _HOUR), 24)
    return f"{whole:,} d" + (f" {rest} h" if rest else "")
