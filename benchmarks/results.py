"""Results of long benchmarks: a line of JSON a finished run, so that they may be stopped at any time and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def known(out: Path) -> list[Run]:
    """The runs that are finished."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def has(out: Path, job: Run) -> bool:
    """Whether a run that was asked for like this is finished."""
    return any(job.items() <= run.items() for run in known(out))


def note(out: Path, run: Run) -> None:
    """Keep a finished run."""
    with out.open("a") as file:
        file.write(json.dumps(run) + "\n")
