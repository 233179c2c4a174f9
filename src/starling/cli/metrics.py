"""`starling metrics`"""

from __future__ import annotations

import sys
from collections import deque
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starling.cli.arguments import Run
from starling.cli.listing import print_rows
from starling.cli.show import say
from starling.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starling.experiment.run_folder.rows import Rows

MAIN = ("env_steps", "updates", "return", "episodes", "episode_length", "eval/return", "explore/epsilon")
LAST = ("time/steps_per_s",)


def metrics(
    run: Run,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write every row as CSV; - is stdout.", show_default="a table")
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 10,
    keys: Annotated[bool, typer.Option("--keys", help="Explain the keys of this run instead.")] = False,
) -> None:
    """Show a run's last rows, write all of them as CSV, or explain their keys.

    Example: starling metrics runs/mine --csv mine.csv
    """
    from starling.experiment.run_folder.folder import find
    from starling.experiment.run_folder.rows import FIRST, damage_line, finished_rows

    file = find(run).metrics_file
    rows = finished_rows(file)
    count, newest, names = 0, deque[dict[str, Any]](maxlen=last), dict.fromkeys(FIRST)
    for row in rows:
        count += 1
        newest.append(row)
        names |= dict.fromkeys(row)
    if rows.damaged:
        print(f"warning: {damage_line(file, rows.damaged)}", file=sys.stderr)
    if keys and count:
        _explain(list(names))
    elif csv is None:
        for line in _table(list(newest)) if newest else ["no rows yet"]:
            say(line)
    else:
        _export(rows, count, [*FIRST, *sorted(names.keys() - set(FIRST))], csv)


def _explain(keys: Sequence[str]) -> None:
    """Print the unit and the meaning of every key, in the order of docs/metrics.md; unknown keys come last."""
    from starling.experiment.run_folder.metric_keys import METRICS, find

    found = {key: find(key) for key in sorted(keys)}
    known = sorted((METRICS.index(metric), key, metric) for key, metric in found.items() if metric is not None)
    lines = [(key, metric.unit.name, metric.meaning.replace("`", "")) for _, key, metric in known]
    lines += [(key, "-", "not in the reference: of your own algorithm?") for key in found if found[key] is None]
    print_rows([{"key": printable(key), "unit": unit, "meaning": meaning} for key, unit, meaning in lines])


def _export(rows: Rows, count: int, names: Sequence[str], target: str) -> None:
    from starling.errors import UserError
    from starling.experiment.run_folder.disk import output
    from starling.experiment.run_folder.rows import MOST_CELLS, csv_cell, write_csv

    if count * len(names) > MOST_CELLS:
        raise UserError(
            f"{count:,} rows of {len(names):,} columns are too many for one CSV file; read metrics.jsonl instead"
        )
    cells = ({csv_cell(key): csv_cell(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows)
    shown, heads = islice(cells, count), [csv_cell(name) for name in names]
    if target == "-":
        write_csv(shown, heads, sys.stdout)
        return
    try:
        with output(Path(target)) as stream:
            write_csv(shown, heads, stream)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; choose another file with --csv") from None
    print(f"wrote {target}: {count:,} rows")


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format the main columns as lines, with their names in the file."""
    present = {key for row in rows for key in row}
    losses = sorted(key for key in present if key.startswith("loss/"))
    names = [key for key in (*MAIN, *losses, *LAST) if key in present]
    cells = [[printable(name) for name in names], *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in cells]


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
