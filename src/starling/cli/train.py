"""`starling train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    source: Annotated[str, typer.Argument(metavar="PRESET", help="A preset's name or a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, e.g. seed=3 algo.batch=64."),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
) -> None:
    """Train an agent: `starling train ppo-cartpole seed=3`."""
    from starling.config.load import load

    config = load(source, overrides or [])

    from starling import training
    from starling.cli.show import closing_lines, progress_line

    result = training.train(config, runs, report=lambda row: print(progress_line(row), flush=True))
    print(closing_lines(result))
