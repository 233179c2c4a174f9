"""`starling resume`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starling.cli.arguments import Allow, Checkpoint, Run


def resume(
    run: Run,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, in a branch of the run.")
    ] = None,
    checkpoint: Checkpoint = "newest",
    runs: Annotated[Path | None, typer.Option(help="Folder for the branch.", show_default="beside the run")] = None,
    allow: Allow = None,
) -> None:
    """Resume a run from a checkpoint.

    Without settings it continues in its own folder, from the newest checkpoint; envs start new episodes, unless the run
    has checkpoint.exact=true, which resumes bit for bit. With settings it branches: a new run starts from the
    checkpoint and prints what changed, and the old run stays as it is. The setting run=NAME alone is enough.

    Example: starling resume runs/mine

    Example: starling resume runs/mine stop.env_steps=500000 algo.optimizer.args.lr=0.0001 --checkpoint best
    """
    from starling.cli.precheck import load_checked
    from starling.experiment.run_folder.folder import check_writable, find

    place = find(run, allow or ())
    place.check_algorithm(overrides or [])
    config = load_checked(str(place.config_file), overrides or [], derive=False, vet=place.vet)
    if config.runtime == "ray":
        place.check_cluster(overrides or [])
    check_writable(runs or run.parent)

    from starling.cli.progress import Progress
    from starling.cli.show import closing_lines, show_curve
    from starling.experiment import train as training

    with Progress(config) as display:
        if overrides:
            result = training.branch(
                run, config, runs or run.parent, display, which=checkpoint, allow=place.allow, overrides=overrides
            )
        else:
            result = training.resume(run, display, which=checkpoint, allow=place.allow)
        display.close(closing_lines(result))
    show_curve(result)
    raise typer.Exit(result.exit_code)
