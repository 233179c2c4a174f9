"""Rows of metrics as JSON lines, and as CSV: strict JSON is written, and damaged lines are skipped when reading.

Does not import torch, for commands that only inspect a run.
"""

from __future__ import annotations

import csv
import json
import math
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from starling.config.bounded_json import parse_json
from starling.errors import UserError, escaped
from starling.experiment.run_folder.disk import open_regular, read_bounded

Row = dict[str, Any]
MOST_BYTES, LONGEST_LINE = 2**27, 2**20
MOST_LINES, MOST_KEYS = 500_000, 2_000
"""Limits of a file of rows. A run writes a hundred rows of about a kilobyte each, unless log.every is set."""
MOST_CELLS = 50_000_000
"""Limit of rows times columns of a CSV file."""
FIRST = ("env_steps", "updates", "return")
"""First columns of a CSV file."""
_LARGEST = 2**200  # absolute value of a number
_TEXTS = ("time/bottleneck", "warnings")
"""Keys whose values are strings."""


def to_json(value: Any, indent: int | None = None) -> bytes:
    """Encode as JSON, with null for NaN and infinities."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Rows:
    """Iterable over the rows of a file, which is read line by line in every iteration.

    Damaged lines (torn, not UTF-8, or not a row) are skipped; `damaged` is their number in the last iteration.

    Raises:
        UserError: The file cannot be read, or exceeds the limits of its size, its lines, or its number of keys.
    """

    def __init__(self, path: Path, finished: bool = False) -> None:
        """With `finished`, a last line without a newline, which may be incomplete, is ignored."""
        self._path, self._finished = path, finished
        self.damaged = 0

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.lines())

    def lines(self) -> Iterator[tuple[bytes, Row]]:
        """Yield every row with its line."""
        self.damaged, keys = 0, set[str]()
        for line in self._bounded_lines():
            row = _parse(line)
            if row is None:
                self.damaged += 1
                continue
            keys.update(row)
            if len(keys) > MOST_KEYS:
                raise self._too_large(f"more than {MOST_KEYS:,} keys")
            yield line, row

    def _bounded_lines(self) -> Iterator[bytes]:
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb") as handle:
                if os.fstat(handle.fileno()).st_size > MOST_BYTES:
                    raise self._too_large(f"more than {MOST_BYTES:,} bytes")
                for number in count(1):
                    line = handle.readline(LONGEST_LINE + 1)
                    if not line or (self._finished and not line.endswith(b"\n") and len(line) <= LONGEST_LINE):
                        return
                    if len(line) > LONGEST_LINE:
                        raise self._too_large(f"a line of more than {LONGEST_LINE:,} bytes")
                    if number > MOST_LINES:
                        raise self._too_large(f"more than {MOST_LINES:,} lines")
                    if line != b"\n":
                        yield line
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None

    def _too_large(self, what: str) -> UserError:
        return UserError(f"{self._path} has {what}, which rows of a run never have: move it away to do without them")


def _nothing(constant: str) -> None:
    """Read NaN and infinities as None."""


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line, parse_constant=_nothing)  # NaN, which earlier versions wrote
    except ValueError:  # also if it is not UTF-8
        return None
    return row if isinstance(row, dict) and _is_row(row) else None


def _is_row(row: dict[str, Any]) -> bool:
    """Return True for a flat dict with env steps whose numbers are small enough for any program."""
    steps = row.get("env_steps")
    if type(steps) is not int or not 0 <= steps < 2**62:
        return False
    for key, value in row.items():
        if isinstance(value, int | float):
            if not -_LARGEST < value < _LARGEST:
                return False
        elif value is not None and not (isinstance(value, str) and key in _TEXTS):
            return False
    return True


def read_content(path: Path) -> bytes:
    """Read the bytes of a file of rows; raises `UserError` if it cannot be read or is too large."""
    try:
        return read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def damage_line(path: Path, damaged: int) -> str:
    """Format a message about damaged rows."""
    return f"{path}: {damaged} damaged {'row is' if damaged == 1 else 'rows are'} left out"


def finished_rows(path: Path) -> Rows:
    """Return the rows of a file that may still be growing: an incomplete last line is ignored."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: nothing has been written yet")
    return Rows(path, finished=True)


def csv_cell(text: str) -> str:
    """Return a text as a spreadsheet shows it: no control characters, and no formula."""
    plain = escaped(text)
    is_formula = unicodedata.normalize("NFKC", plain).lstrip().startswith(("=", "+", "-", "@"))
    return f"'{plain}" if is_formula else plain


def write_csv(rows: Iterable[Row], names: Sequence[str], stream: TextIO) -> None:
    """Write a header and one line per row; missing values are empty."""
    writer = csv.DictWriter(stream, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
