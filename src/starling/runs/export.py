"""A run's rows for other programs: read without torch, written as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from starling.errors import UserError

FIRST = ("env_steps", "updates", "return")


def read_finished(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that may be growing: a last line without its end is not a row yet."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: nothing has been written yet")
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a row of metrics; mend or remove that line")
    return row


def columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Every key of every row: the counters and the score, then the others by name."""
    keys = {key for row in rows for key in row}
    return [*FIRST, *sorted(keys.difference(FIRST))]


def write_csv(rows: Sequence[dict[str, Any]], stream: TextIO) -> None:
    """A header and a line a row; what a row lacks is empty."""
    writer = csv.DictWriter(stream, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
