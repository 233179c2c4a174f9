"""Export the rows of a run as CSV, without torch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from starling.errors import UserError
from starling.experiment.run_folder.rows import Row, Rows

FIRST = ("env_steps", "updates", "return")
MOST_CELLS = 50_000_000
"""Limit of rows times columns of a CSV file."""


def finished_rows(path: Path) -> Rows:
    """Return the rows of a file that may still be growing: an incomplete last line is ignored."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: nothing has been written yet")
    return Rows(path, finished=True)


def write_csv(rows: Iterable[Row], names: Sequence[str], stream: TextIO) -> None:
    """Write a header and one line per row; missing values are empty."""
    writer = csv.DictWriter(stream, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
