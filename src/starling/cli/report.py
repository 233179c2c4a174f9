"""`starling report` and `starling scorecard`"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starling.cli.arguments import AsJson
from starling.cli.show import say

if TYPE_CHECKING:
    from starling.tools.report.groups import Group
    from starling.tools.scorecard.scorecard import Card

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the charts as images.", show_default="none")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all rows as one CSV table.", show_default="none")
    ] = None,
    smooth: Annotated[float, typer.Option(min=0, max=0.99, help="Smoothing of the curves, as in TensorBoard.")] = 0.0,
) -> None:
    """Write one HTML page that shows runs side by side; it needs no network.

    Runs that differ only in their seed form a band; runs of different envs have sections of their own. Runs may be in
    progress, and they may be a stranger's: nothing of theirs is imported. Those that cannot be read are named, and the
    exit code is then 2.

    Example: starling report runs/* --out report.html --png plots
    """
    from starling.errors import UserError
    from starling.experiment.run_folder.disk import output
    from starling.tools.report.page import build_page
    from starling.tools.report.png import check_matplotlib, write_images
    from starling.tools.report.table_csv import export

    if png is not None:
        check_matplotlib()
    groups, missing = _read(runs)
    count = sum(len(group.runs) for group in groups)
    page = build_page(groups, missing, smooth=smooth)
    try:
        with output(out) as stream:
            stream.write(page)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another file with --out") from None
    say(f"wrote {out}: {count:,} {'run' if count == 1 else 'runs'}, {_environments(groups)}")
    if png is not None:
        say(f"wrote {len(write_images(groups, png, smooth=smooth)):,} images to {png}")
    if csv is not None:
        say(f"wrote {csv}: {export(groups, csv):,} rows")
    for run in (run for group in groups for run in group.runs):
        for problem in run.problems:
            print(f"warning: {run.name}: {_plain(problem)}", file=sys.stderr)
    if missing:
        raise UserError(*missing)


def scorecard(
    runs: Runs,
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="COLUMN", help="Only this column; may be repeated.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show scores of runs beside published ones, human-normalized where there are human scores.

    A published score is compared with the score of the same kind (training episodes, last or best evaluation), and
    only if the protocols agree; otherwise the points that differ are named.

    Example: starling scorecard runs/pong-* --against DQN
    """
    from starling.errors import UserError
    from starling.tools.scorecard.scorecard import cards_of, column_called, missing_line

    columns = [column_called(name) for name in against] if against else None
    groups, missing = _read(runs)
    shown, told = list[dict[str, Any]](), list[str]()
    for group in groups:
        cards = cards_of(group, columns)
        if not cards:
            missing.append(missing_line(group.runs[0].env, columns))
        for card in cards:
            shown.append(_plain_card(group, card))
            told += _card_lines(group, card)
    for line in told:
        say(line)
    if as_json and shown:
        print(json.dumps(shown))
    if missing:
        raise UserError(*missing)


def _read(runs: list[Path]) -> tuple[list[Group], list[str]]:
    """Read and sort runs; also return one line for each that cannot be read. With none left, raise `UserError`."""
    from starling.errors import UserError
    from starling.tools.report.groups import group_runs
    from starling.tools.report.runs import read_runs

    found, missing = read_runs(runs)
    if not found:
        raise UserError(*missing)
    return group_runs(found), missing


def _environments(groups: list[Group]) -> str:
    return "1 environment" if len(groups) == 1 else f"{len(groups):,} environments"


def _plain(text: str) -> str:
    from starling.errors import escaped

    return escaped(text)


def _card_lines(group: Group, card: Card) -> list[str]:
    from starling.tools.report.scale import number
    from starling.tools.scorecard.card_section import percent, score_text
    from starling.tools.scorecard.scorecard import EVALUATIONS

    speed = [number(None if value is None else round(value)) for value in (card.steps_per_s, card.frames_per_s)]
    lines = [f"{group.title}: {card.series.label}, {speed[0]} steps/s, {speed[1]} frames/s"]
    lines += [f"  {EVALUATIONS[score.kind]}: {score_text(score)}" for score in card.scores]
    for comparison in card.comparisons:
        normal = "" if comparison.normalized is None else f" (human-normalized {percent(comparison.normalized)})"
        ratio = "" if comparison.ratio is None else f", ratio {comparison.ratio:.2f}"
        value = number(comparison.value)
        lines.append(f"  {comparison.column.name:<15} {value:>9}{normal}: {comparison.verdict}{ratio}")
    return lines


def _plain_card(group: Group, card: Card) -> dict[str, Any]:
    scores = {score.kind: {k: v for k, v in vars(score).items() if k != "kind"} for score in card.scores}
    columns = [
        {
            "column": each.column.name,
            "published": each.value,
            "human_normalized": each.normalized,
            "score": None if each.score is None or not each.is_comparable else each.score.kind,
            "comparable": each.is_comparable,
            "ratio": each.ratio,
            "differences": list(each.differences),
            "unknown": list(each.unknown),
        }
        for each in card.comparisons
    ]
    speeds = {"steps_per_s": card.steps_per_s, "frames_per_s": card.frames_per_s}
    return {"env": group.title, "series": card.series.label, **speeds, "scores": scores, "columns": columns}
