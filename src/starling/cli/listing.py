"""`starling presets`, `starling algos` and `starling envs`: what there is."""

from __future__ import annotations

import json
import textwrap
from itertools import takewhile
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")]

_FAMILIES = ("ALE", "MinAtar", "toy")
_GYMNASIUM = "Gymnasium"


def presets(as_json: AsJson = False) -> None:
    """List the presets, which `starling train` takes by name.

    Example: starling presets --json
    """
    from starling.config.load import load, preset_names, preset_text

    rows = []
    for name in preset_names():
        config, about = load(name), _first_sentence(preset_text(name))
        rows.append({"name": name, "algorithm": config.algo.name, "env": config.env.id, "summary": about})
    _print(rows, as_json)


def algos(as_json: AsJson = False) -> None:
    """List the algorithms, which `algo.name` takes.

    Example: starling algos --json
    """
    from starling.config.algo import ALGORITHMS

    _print([{"name": name, "summary": entry.summary} for name, entry in ALGORITHMS], as_json)
    if not as_json:
        print("\nyour own: algo.name=package.module:Class, a subclass of starling.Algorithm")


def envs(
    part: Annotated[str, typer.Argument(metavar="FILTER", help="Only ids with this in them.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the environments that can be made here, which `env.id` takes.

    Example: starling envs pong
    """
    from starling.envs.registry import known_ids
    from starling.errors import UserError, did_you_mean

    known = known_ids()
    found = [id for id in known if part.lower() in id.lower()]
    if not found:
        raise UserError(f"no environment has {part!r} in its id{did_you_mean(part, known)}; see starling envs")
    families: dict[str, list[str]] = {family: [] for family in (_GYMNASIUM, *_FAMILIES)}
    for id in found:
        prefix = id.partition("/")[0]
        families[prefix if prefix in _FAMILIES else _GYMNASIUM].append(id)
    if as_json:
        _print([{"id": id, "family": family} for family, ids in families.items() for id in ids], as_json)
        return
    for family, ids in families.items():
        if ids:
            print(f"{family} ({len(ids)})")
            print(_wrapped(ids))
    print("\nyour own: env.id=package.module:factory, a callable that returns a gymnasium.Env")


def _first_sentence(text: str) -> str:
    """The first sentence of the comment that a preset begins with."""
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    first, end, _ = " ".join(line.removeprefix("#").strip() for line in comment).partition(". ")
    return first + end.strip()


def _wrapped(words: list[str]) -> str:
    indent = "  "
    return textwrap.fill("  ".join(words), 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _print(rows: list[dict[str, str]], as_json: bool) -> None:
    """One row a line with aligned columns, or JSON."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    widths = {key: max(len(row[key]) for row in rows) for key in rows[0]}
    for row in rows:
        print("  ".join(f"{cell:<{widths[key]}}" for key, cell in row.items()).rstrip())
