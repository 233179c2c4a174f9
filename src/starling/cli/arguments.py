"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="PRESET|FILE", help="A preset's name or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. seed=3 algo.batch=64.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="PACKAGE",
        help="Allow a run made by somebody else to import this package; may be repeated.",
        show_default="your own runs only",
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]
Checkpoint = Annotated[str, typer.Option(help="Checkpoint to use: newest, best, or its env steps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")]
