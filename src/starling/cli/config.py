"""`starling config`: look at a configuration, check it, compare it, describe it to an editor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from starling.cli.arguments import Overrides

config_app = typer.Typer(help="Look at configurations, check and compare them.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A preset's name, a YAML file or a run's folder.")]


@config_app.command("show")
def show(
    source: Source,
    overrides: Overrides = None,
    plain: Annotated[bool, typer.Option("--plain", help="Leave out the comments.")] = False,
) -> None:
    """Print every setting as YAML, with what it is.

    Example: starling config show ppo-cartpole > my.yaml
    """
    from starling.config.load import load, to_yaml

    print(to_yaml(load(_located(source), overrides or []), comments=not plain), end="")


@config_app.command("check")
def check(source: Source, overrides: Overrides = None) -> None:
    """Print ok, or every mistake.

    Example: starling config check my.yaml algo.batch=64
    """
    from starling.cli.precheck import unknown_env
    from starling.config import load
    from starling.errors import UserError

    values, mistakes = load.merge(_located(source), overrides or [])
    sections = [values.get(key) for key in ("env", "algo")]
    env, algo = (section if isinstance(section, dict) else {} for section in sections)
    unknown = unknown_env(env.get("id"), algo.get("name"))
    mistakes = [*mistakes, *load.check(values)[1], *([] if unknown is None else [unknown])]
    if mistakes:
        raise UserError("\n".join(mistakes))
    print("ok")


@config_app.command("schema")
def schema(
    algo: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the settings of this algorithm.", show_default="all")
    ] = None,
) -> None:
    """Print the JSON Schema that editors check and complete with.

    Example: starling config schema > starling.json
    """
    from starling.config.describe import json_schema

    print(json.dumps(json_schema(algo), indent=2))


@config_app.command("diff")
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A preset's name, a YAML file or a run's folder.")],
    other: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
) -> None:
    """Print the settings that differ.

    Example: starling config diff ppo-cartpole runs/mine
    """
    from starling.config.dialect import on_one_line
    from starling.config.load import differences, load, to_dict

    first, second = (to_dict(load(_located(source))) for source in (one, other))
    lines = [f"{key}: {on_one_line(here)} -> {on_one_line(there)}" for key, (here, there) in differences(first, second)]
    print("\n".join(lines or ["no difference"]))


def _located(source: str) -> str:
    """The file of a run's folder; a preset or a file is what it is."""
    from starling.config.load import preset_names
    from starling.runs.folder import find

    path = Path(source)
    named = source in preset_names() or path.suffix in (".yaml", ".yml")
    if not named and (path.is_dir() or "/" in source):
        return str(find(path).config_file)
    return source
