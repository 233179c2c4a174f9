"""A run's rows for other programs: read without torch, written as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from starling.errors import UserError
from starling.experiment.run_folder.rows import parse_rows, read_content

FIRST = ("env_steps", "updates", "return")


def read_finished(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of a file that may be growing, whose last line may not be a row yet, and how many are damaged."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: nothing has been written yet")
    finished, _, _ = read_content(path).rpartition(b"\n")
    return parse_rows(finished)


def columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Every key of every row: the counters and the score, then the others by name."""
    keys = {key for row in rows for key in row}
    return [*FIRST, *sorted(keys.difference(FIRST))]


def write_csv(rows: Sequence[dict[str, Any]], stream: TextIO) -> None:
    """A header and a line a row; what a row lacks is empty."""
    writer = csv.DictWriter(stream, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
