"""What a figure was measured on: every benchmark prints it beside its numbers."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


def describe(*packages: str) -> dict[str, Any]:
    """The machine and the versions of `packages` (None: not installed)."""
    return {
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median and extremes of repeated measurements."""
    return {"median": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
