"""`starling config`: show, check, and compare configurations, and print their JSON Schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.arguments import Allow, Overrides
from starling.cli.show import say
from starling.errors import escaped

if TYPE_CHECKING:
    from starling.experiment.run_folder.folder import RunFolder

config_app = typer.Typer(help="Show, check, and compare configurations.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A preset's name, a YAML file, or a run's folder.")]


@config_app.command("show")
def show(
    source: Source,
    overrides: Overrides = None,
    plain: Annotated[bool, typer.Option("--plain", help="Leave out the comments.")] = False,
) -> None:
    """Print every setting as YAML, with its description.

    Nothing named in the file is imported, so a stranger's file is safe to show. For your own algorithm, only the
    settings that the file gives are shown.

    Example: starling config show ppo-cartpole > my.yaml
    """
    from starling.config.load import load, secrets_warning, to_yaml

    file, run = _located(source)
    config = load(file, overrides or [], derive=run is None, imports=False)
    print(to_yaml(config, comments=not plain, hidden=True), end="")
    if warning := secrets_warning(config):
        print(escaped(warning), file=sys.stderr)


@config_app.command("check")
def check(source: Source, overrides: Overrides = None, allow: Allow = None) -> None:
    """Print ok, or what `starling train` would refuse on any machine; `starling plan` checks memory and disk.

    Settings that were chosen for another env, and what `init_from` would take, are printed too.

    The env and the network are built once, so that settings that do not fit them are found too.

    Example: starling config check my.yaml algo.batch=64
    """
    from starling.cli.precheck import load_checked
    from starling.experiment.run_folder.folder import Vetting

    file, run = _located(source, allow)
    vet = Vetting(allow or ()) if run is None else run.vet
    config = load_checked(file, overrides or [], derive=run is None, vet=vet)

    from starling.config.notes import notes_on
    from starling.experiment.initial_weights import match_weights, read_weights
    from starling.experiment.saved_replay.start import check_replay
    from starling.launch.plan import build_model, layout_of, validated_plan
    from starling.launch.sizes import initial_limits

    run_plan = validated_plan(config)
    model = build_model(run_plan)
    layout = layout_of(run_plan, model)
    if config.runtime == "ray":
        from starling.launch.ray import check_cluster_run

        check_cluster_run(run_plan, layout)
    if config.replay_from is not None and run is None:
        check_replay(run_plan, layout, Path(config.replay_from))
    if config.init_from is not None and run is None:
        initial, mine = read_weights(config.init_from, initial_limits(run_plan, model)), model.state_dict()
        for line in match_weights(initial, mine).lines(initial.source, mine):
            say(line)
    for note in notes_on(file, overrides or [], config) if run is None else ():
        say(note)
    print("ok")


@config_app.command("schema")
def schema(
    algo: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the settings of this algorithm.", show_default="all")
    ] = None,
) -> None:
    """Print the JSON Schema, with which editors check and complete files.

    Example: starling config schema > starling.json
    """
    from starling.config.describe import file_schema

    print(json.dumps(file_schema(algo), indent=2))


@config_app.command("diff")
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A preset's name, a YAML file, or a run's folder.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The one to compare it with.")],
) -> None:
    """Print the settings that differ; nothing named in the files is imported.

    Example: starling config diff ppo-cartpole runs/mine
    """
    from starling.config.dialect import on_one_line
    from starling.config.load import differences, load, to_saved
    from starling.config.secrets import hide

    located = (_located(source) for source in (one, other))
    first, second = (to_saved(load(file, derive=run is None, imports=False)) for file, run in located)
    found = ((key, (hide(here, key), hide(there, key))) for key, (here, there) in differences(first, second))
    lines = [f"{key}: {on_one_line(here)} -> {on_one_line(there)}" for key, (here, there) in found]
    for line in lines or ["no difference"]:
        say(line)


def _located(source: str, allow: list[str] | None = None) -> tuple[str, RunFolder | None]:
    """Return `source` if it is a preset or a file; for a run folder, its configuration file and the run."""
    from starling.config.load import is_file, preset_names
    from starling.experiment.run_folder.folder import find

    named = source in preset_names() or is_file(source)
    if not named and (Path(source).is_dir() or "/" in source):
        run = find(Path(source), allow or ())
        return str(run.config_file), run
    return source, None
