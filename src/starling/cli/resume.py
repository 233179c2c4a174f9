"""`starling resume`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(run: Annotated[Path, typer.Argument(help="The run's folder.")]) -> None:
    """Go on with a run from its newest checkpoint: `starling resume runs/CartPole-v1-ppo-...`."""
    from starling.runs.folder import find

    find(run)

    from starling import training
    from starling.cli.show import closing_lines, progress_line

    result = training.resume(run, report=lambda row: print(progress_line(row), flush=True), warn=print)
    print(closing_lines(result))
