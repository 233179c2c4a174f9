"""Read the score, learning curve, and minutes of a finished run from its folder. Does not import torch."""

from __future__ import annotations

import re

from starling.errors import UserError
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.log import read_log
from starling.experiment.run_folder.rows import Row, Rows
from starling.tools.results.records import Curve, thin

SCORED = 100
"""Episodes in a run's mean return."""
_PHASE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (run: |resuming from |finished: )(.*)$", re.MULTILINE)


def end_of(folder: RunFolder) -> str | None:
    """Return the reason why a run last ended, from its log; None if it is in progress or was killed."""
    phases = _PHASE.findall(read_log(folder.log_file))
    return phases[-1][1] if phases and phases[-1][0] == "finished: " else None


def is_finished(folder: RunFolder) -> bool:
    """Return True if a run ended normally: it was not interrupted or killed, and did not fail."""
    reason = end_of(folder)
    return reason is not None and not reason.startswith("SIG") and "failed: " not in reason


def rows_of(folder: RunFolder) -> list[Row]:
    """Return all rows of metrics; raises `UserError` if there are none."""
    rows = list(Rows(folder.metrics_file)) if folder.metrics_file.exists() else []
    if not rows:
        raise UserError(f"{folder.path} has no metrics")
    return rows


def training_score(rows: list[Row]) -> tuple[float, str]:
    """Return the mean return of the last 100 training episodes, or of all if there are fewer, and the protocol."""
    last = rows[-1]
    if last.get("return") is None:
        raise UserError(f"no score: no episode ended in {last['env_steps']:,} env steps")
    return last["return"], f"mean return of the last {min(last['episodes'], SCORED)} training episodes"


def training_minutes(rows: list[Row]) -> float:
    """Return the minutes of training in all sessions of a run; `time/seconds` restarts with each session."""
    seconds = 0.0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is None or starts_session(row, following):
            seconds += row["time/seconds"]
    return seconds / 60


def learning_curve(rows: list[Row]) -> Curve:
    """Return points (env steps, mean return), at most `CURVE_POINTS`."""
    return thin([(row["env_steps"], round(row["return"], 3)) for row in rows if row.get("return") is not None])


def starts_session(before: Row, row: Row) -> bool:
    """Return True if a resumed session wrote `row`: its start is not earlier than `before`.

    A session starts at env_steps - steps_per_s x seconds; the speed is rounded to 0.1 and the time to 0.001 s.
    """
    speed, seconds = row["time/steps_per_s"], row["time/seconds"]
    rounding = 0.05 * seconds + 0.0005 * speed + 1
    return bool(row["env_steps"] - speed * seconds >= before["env_steps"] - rounding)
