"""`starling train`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starling.cli.arguments import Allow, Overrides, Source


def train(
    source: Source,
    overrides: Overrides = None,
    runs: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    allow: Allow = None,
) -> None:
    """Train an agent.

    Ctrl-C saves and ends with code 0, SIGTERM with 143, a closed terminal (SIGHUP) with 129; a second signal ends at
    once. Before training begins there is nothing to save, and Ctrl-C ends with 130.

    Example: starling train ppo-cartpole seed=3 run=mine stop.env_steps=200000
    """
    from starling.cli.precheck import load_source

    config = load_source(source, overrides or [], allow, seals=True)

    from starling.config.load import is_file
    from starling.config.notes import notes_on
    from starling.experiment.run_folder.folder import check_writable

    check_writable(runs)
    if config.runtime == "processes":
        from starling.runtime.prewarm import prewarm

        prewarm()  # loads torch in parallel with this process

    from starling.cli.progress import Progress
    from starling.cli.show import closing_lines, show_curve
    from starling.experiment import train as training

    with Progress(config) as display:
        file, notes = Path(source) if is_file(source) else None, notes_on(source, overrides or [], config)
        result = training.train(config, runs, display, file=file, notes=notes)
        display.close(closing_lines(result))
    show_curve(result)
    raise typer.Exit(result.exit_code)
