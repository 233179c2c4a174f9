"""Results of long benchmarks: one JSON line per finished run, so that they can be interrupted and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def read_runs(out: Path) -> list[Run]:
    """The finished runs."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def is_finished(out: Path, job: Run) -> bool:
    """Return whether a run with these settings is finished."""
    return any(job.items() <= run.items() for run in read_runs(out))


def append_run(out: Path, run: Run) -> None:
    """Append a finished run."""
    with out.open("a") as file:
        file.write(json.dumps(run) + "\n")
