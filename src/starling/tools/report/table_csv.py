"""All rows of several runs as one CSV table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from starling.errors import UserError
from starling.experiment.run_folder.disk import output
from starling.experiment.run_folder.rows import FIRST, MOST_CELLS, Rows, csv_cell, write_csv
from starling.tools.report.groups import Group
from starling.tools.report.runs import Run

COLUMNS = ("environment", "series", "run", "seed")
"""Columns before those of the rows."""


def export(groups: Sequence[Group], file: Path) -> int:
    """Write every row of every run; returns their number.

    Control characters of texts are escaped; texts that a spreadsheet would take for a formula begin with an apostrophe.

    Raises:
        UserError: the table would be too large, or the file cannot be written.
    """
    keys = {key for group in groups for run in group.runs for key in run.table.columns if not key.startswith("speed/")}
    count = sum(run.table.rows for group in groups for run in group.runs)
    texts = {"time/bottleneck", "warnings"}
    names = [*COLUMNS, *FIRST, *sorted((keys | texts) - {*FIRST, *COLUMNS})]
    if count * len(names) > MOST_CELLS:
        raise UserError(f"{count:,} rows of {len(names):,} columns are too many for one CSV file; name fewer runs")
    try:
        with output(file) as stream:
            write_csv(_rows(groups), [csv_cell(name) for name in names], stream)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; choose another file with --csv") from None
    return count


def _rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    for group in groups:
        for series in group.series:
            for run in series.runs:
                yield from _rows_of(run, (group.title, series.label, run.name, str(run.seed)))


def _rows_of(run: Run, told: Sequence[str]) -> Iterator[dict[str, Any]]:
    first = dict(zip(COLUMNS, map(csv_cell, told), strict=True))
    rows = Rows(run.path / "metrics.jsonl", finished=True)
    for number, row in enumerate(rows):
        if number == run.table.rows:  # the run has gone on since
            return
        yield {
            csv_cell(key): csv_cell(value) if isinstance(value, str) else value for key, value in row.items()
        } | first
