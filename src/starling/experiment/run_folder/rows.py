"""Rows of metrics as JSON lines: written so that any parser reads them, read even where some are damaged.

Free of torch, for commands that only look at a run.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from starling.config.bounded_json import parse_json
from starling.errors import UserError
from starling.experiment.run_folder.disk import read_bounded

Row = dict[str, Any]
MOST_BYTES = 2**30
"""Of a file of rows; a million rows have less."""
_TEXTS = ("time/bottleneck", "warnings")
"""Keys whose values are text."""


def to_json(value: Any, indent: int | None = None) -> bytes:
    """JSON in which NaN and the infinities, for which it has no number, are null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_rows(content: bytes) -> tuple[list[Row], int]:
    """The rows in the content of a file, and how many of its lines are damaged: torn, not UTF-8, or not a row."""
    parsed = [_parse(line) for line in content.split(b"\n") if line]
    rows = [row for row in parsed if row is not None]
    return rows, len(parsed) - len(rows)


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line, parse_constant=lambda constant: None)  # NaN, which earlier versions wrote
    except ValueError:  # also where it is not UTF-8
        return None
    return row if isinstance(row, dict) and _is_row(row) else None


def _is_row(row: dict[str, Any]) -> bool:
    """Flat, with env steps; what counts and measures is a number of a size that any program can handle."""
    steps = row.get("env_steps")
    if type(steps) is not int or not 0 <= steps < 2**62:
        return False
    return all(
        value is None
        or (isinstance(value, str) and key in _TEXTS)
        or (isinstance(value, int | float) and abs(value) < 2**200)
        for key, value in row.items()
    )


def read_content(path: Path) -> bytes:
    """The bytes of a file of rows; refuses one that cannot be read or is larger than rows of a run ever are."""
    try:
        return read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def read_first(path: Path, count: int, env_steps: int) -> tuple[list[Row], int]:
    """The first `count` rows, none of them after `env_steps`, and how many lines of the file are damaged.

    The count alone would not do: where rows are damaged, later ones would move up.
    """
    rows, damaged = parse_rows(read_content(path)) if path.exists() else ([], 0)
    return [row for row in rows if row["env_steps"] <= env_steps][:count], damaged


def damage_line(path: Path, damaged: int) -> str:
    """One line about damaged rows."""
    return f"{path}: {damaged} damaged {'row is' if damaged == 1 else 'rows are'} left out"
