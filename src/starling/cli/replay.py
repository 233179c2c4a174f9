"""`starling replay`: inspect, export, and sample a run's replay."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.arguments import Allow, AsJson, Checkpoint, Run
from starling.cli.show import number, say
from starling.errors import UserError

if TYPE_CHECKING:
    from starling.experiment.saved_replay.from_checkpoint import SavedReplay
    from starling.tools.replay.drawn import Drawn
    from starling.tools.replay.info import Histogram, TableInfo

replay_app = typer.Typer(help="Inspect, export, and sample a run's replay.", no_args_is_help=True)
BAR = 40
"""Width of the longest bar in characters."""


@replay_app.command("info")
def info(run: Run, checkpoint: Checkpoint = "newest", allow: Allow = None, as_json: AsJson = False) -> None:
    """Show the size, age, returns, and priorities of a run's replay.

    Example: starling replay info runs/mine --json
    """
    replay = _load(run, checkpoint, allow)

    from starling.tools.replay.info import describe

    tables = describe(replay)
    say(f"{run}, {replay.checkpoint}: {replay.env_steps:,} env steps, {replay.updates:,} updates")
    for table in tables:
        for line in ("", *_lines(table)):
            say(line)
    if as_json:
        about = {"run": str(run), "checkpoint": replay.checkpoint, "env_steps": replay.env_steps}
        print(json.dumps({**about, "updates": replay.updates, "tables": [asdict(table) for table in tables]}))


@replay_app.command("export")
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to create; it must not exist yet.")],
    checkpoint: Checkpoint = "newest",
    allow: Allow = None,
) -> None:
    """Write a replay as safetensors and JSON, which numpy reads and a new run can start from.

    The format is described in docs/replay-format.md.

    Example: starling replay export runs/mine --out mine-replay && starling train dqn-cartpole replay_from=mine-replay
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder with --out")
    replay = _load(run, checkpoint, allow)

    from starling.experiment.saved_replay.export import export_replay
    from starling.launch.fitting import in_words

    manifest = export_replay(replay, out)
    for name, table in manifest.tables.items():
        size = sum(part.bytes for part in table.parts)
        say(f"{name}: {table.items:,} items, {table.steps:,} steps, {in_words(size)} in {len(table.parts)} files")
    print(f"wrote {out}")


@replay_app.command("sample")
def sample(
    run: Run,
    n: Annotated[int, typer.Option("--n", min=1, help="Items to sample.")] = 16,
    out: Annotated[
        Path | None, typer.Option(help="Also write the items as one image: sheet.png.", show_default="no image")
    ] = None,
    checkpoint: Checkpoint = "newest",
    allow: Allow = None,
) -> None:
    """Sample items as the run's own sampler would, the likeliest first.

    The image has one numbered strip per item, in the order of the table: its first observation, its last, and some
    between them. The bar above a strip shows the item's probability.

    Example: starling replay sample runs/mine --n 32 --out sheet.png
    """
    if out is not None and out.suffix.lower() != ".png":
        raise UserError(f"{out} does not end in .png, the only image format that can be written")
    replay = _load(run, checkpoint, allow)

    from starling.tools.replay.drawn import draw_items
    from starling.tools.replay.sheet import check_pictures, write_sheet

    path = None if out is None else check_pictures(replay.layout, replay.run_plan.env.id)
    drawn = draw_items(replay, n)
    for line in _table(drawn):
        say(line)
    if out is not None and path is not None:
        print(f"wrote {write_sheet(drawn, replay.layout, path, out)}")


def _load(run: Path, checkpoint: str, allow: list[str] | None) -> SavedReplay:
    from starling.experiment.run_folder.folder import find

    find(run, allow or ()).config()  # reports errors before torch is imported

    from starling.experiment.saved_replay.from_checkpoint import load_replay

    return load_replay(run, which=checkpoint, warn=say, allow=allow or ())


def _lines(table: TableInfo) -> list[str]:
    from starling.launch.fitting import in_words

    used = table.steps / table.capacity
    lines = [
        f"table {table.name}",
        f"  items     {table.items:,}, made of {table.steps:,} steps",
        f"  capacity  {table.capacity:,} steps, {used:.0%} used",
        f"  memory    {in_words(table.bytes)}, codec {table.codec}",
        f"  episodes  {table.episodes:,} complete, mean return {number(table.mean_return)}"
        f" (as learned from), mean length {number(table.mean_length)}",
    ]
    if table.age is not None:
        age = table.age
        lines.append(
            f"  age       mean {age.mean:,.0f} updates, median {age.median:,.0f},"
            f" 90% below {age.ninety:,.0f}, oldest {age.most:,.0f}"
        )
    lines.append(f"  sampler   {table.sampler}" + ("" if table.priorities else ": all items are equally likely"))
    return lines + ([] if table.priorities is None else _bars(table.priorities))


def _bars(histogram: Histogram) -> list[str]:
    most = max(histogram.counts)
    edges = zip(histogram.edges[:-1], histogram.edges[1:], histogram.counts, strict=True)
    header = "  priorities: from, to, number of items"
    return [
        header,
        *(f"    {a:9.3g} {b:9.3g} {count:>11,} {'#' * -(-BAR * count // most)}" for a, b, count in edges),
    ]


def _table(drawn: Drawn) -> list[str]:
    lines = [f"{'#':>4}  {'key':<24} {'priority':>10} {'probability':>12} {'age':>9} {'return':>9} {'steps':>6}"]
    for place, item in enumerate(drawn.items, start=1):
        lines.append(
            f"{place:>4}  {item.key:<24} {item.priority:>10.4g} {item.probability:>12.3e} {item.age:>9,}"
            f" {item.total:>9.4g} {item.steps:>6}"
        )
    lines.append("key: table/slot.generation; age: updates since its oldest step; return: sum of its recorded rewards")
    return lines
