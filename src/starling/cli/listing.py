"""`starling presets`, `starling algos`, and `starling envs`."""

from __future__ import annotations

import json
import shutil
import textwrap
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from starling.config.algorithms import AlgoConfig
    from starling.tools.results.records import Summary

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")]

_MEASURED = ("score", "seeds", "env_steps", "minutes", "date", "protocol", "overrides")
"""Fields of a preset's measured results in JSON."""
_NARROWEST = 32  # minimum columns for the text; with fewer it goes below the other cells


def presets(as_json: AsJson = False) -> None:
    """List the presets, which `starling train` takes by name, with their measured scores.

    A score is the median over seeds; in JSON it is null if none was measured.

    Example: starling presets --json
    """
    from starling.config.load import load, preset_names, preset_text
    from starling.tools.results import records

    rows, results = list[dict[str, Any]](), records.read(records.FILE)
    for name in preset_names():
        config, about = load(name), _first_sentence(preset_text(name))
        row = {"name": name, "algorithm": config.algo.name, "env": config.env.id, "summary": about}
        summary = records.latest(results, name)
        if as_json:
            rows.append(row | {key: getattr(summary, key, None) for key in _MEASURED})
        else:
            rows.append(row | {"summary": f"{about}\n{_measured(summary)}"})
    print_rows(rows, as_json)


def algos(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Also list the networks of this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, which `algo.name` takes, or the networks of one, which `nets` takes.

    Example: starling algos ppo
    """
    from starling.config.algorithms import ALGORITHMS, config_class

    if name is not None:
        _print_networks(name, config_class(name), as_json)
        return
    print_rows([{"name": name, "summary": entry.summary} for name, entry in ALGORITHMS], as_json)
    if not as_json:
        print("\nyour own: algo.name=package.module:Class, a subclass of starling.Algorithm")


def _print_networks(name: str, settings: type[AlgoConfig], as_json: bool) -> None:
    """Print the names that `nets` takes for an algorithm."""
    rows = [{"name": network, "summary": about} for network, about in settings.networks.items()]
    if as_json or rows:
        print_rows(rows, as_json)
    if as_json:
        return
    if not rows:
        print(f"{name} names no networks to configure one by one; net configures all of them")
        return
    if settings.stream_network is not None:
        print(f"{settings.stream_network}_STREAM  optional: an intrinsic reward's own, by the name of its stream")
    print(
        f"\nin YAML: nets: {{{', '.join(row['name'] + ': {}' for row in rows)}}}, each with its own settings in braces"
    )


def envs(
    part: Annotated[str, typer.Argument(metavar="FILTER", help="Only ids that contain this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the environments that can be made here, which `env.id` takes, and the packages that would add others.

    Example: starling envs pong
    """
    from starling.envs.catalog import family, known_ids, missing, without_wheel
    from starling.errors import UserError, did_you_mean

    known = known_ids()
    found = [id for id in known if part.lower() in id.lower()]
    more = {
        requirement: matching
        for requirement, ids in missing().items()
        if (matching := [id for id in ids if _matches(part.lower(), id.lower())])
    }
    absent = [_adds(requirement, ids) for requirement, ids in more.items()]
    absent += [f"cannot be installed: {advice}" for advice in without_wheel(part)]
    if not found and absent:
        raise UserError("; ".join(absent))
    if not found:
        raise UserError(f"no environment has {part!r} in its id{did_you_mean(part, known)}; see starling envs")
    families: dict[str, list[str]] = {}
    for id in found:
        families.setdefault(family(id), []).append(id)
    if as_json:
        print_rows([{"id": id, "family": name} for name, ids in families.items() for id in ids], as_json)
        return
    for name, ids in families.items():
        print(f"{name} ({len(ids)})")
        print(_filled("  ".join(ids), indent="  "))
    print()
    for line in absent:
        print(line)
    print("your own: env.id=package.module:factory, a callable that returns a gymnasium.Env")


def _measured(summary: Summary | None) -> str:
    """Format the measured score of a preset with its env steps, minutes, and date."""
    if summary is None:
        return "not measured"
    from starling.cli.show import number

    seeds = "1 seed" if summary.seeds == 1 else f"median of {summary.seeds} seeds"
    minutes = "" if summary.minutes is None else f", {number(summary.minutes)} minutes"
    date = f", {summary.date}" if summary.date else ""
    return f"score {number(summary.score)} ({seeds}) at {summary.env_steps:,} env steps{minutes}{date}"


def _first_sentence(text: str) -> str:
    """Return the first sentence of a preset's leading comment."""
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    first, end, _ = " ".join(line.removeprefix("#").strip() for line in comment).partition(". ")
    return first + end.strip()


def _matches(part: str, id: str) -> bool:
    """Return True if an id has `part`, or could have it: of some ids only the beginning is known."""
    return part in id or (id.endswith("...") and part.startswith(id.removesuffix("...")))


def _adds(requirement: str, ids: list[str]) -> str:
    """Describe in one line the envs that a package would add."""
    named = f"{ids[0]} and {len(ids) - 1} more" if len(ids) > 2 else " and ".join(ids)
    return f"not installed: {named} (pip install '{requirement}')"


def _width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return shutil.get_terminal_size().columns


def _filled(text: str, indent: str = "", width: int | None = None) -> str:
    """Wrap text to the width of the terminal without breaking long words."""
    width = _width() if width is None else width
    wrapper = textwrap.TextWrapper(
        width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapper.fill(paragraph) for paragraph in text.splitlines())


def print_rows(rows: list[dict[str, Any]], as_json: bool = False) -> None:
    """Print JSON, or one row per line with aligned columns; the last column is wrapped, or goes below the others."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    *keys, text = rows[0]
    widths = [max(len(row[key]) for row in rows) for key in keys]
    left = sum(widths) + 2 * len(widths)
    for row in rows:
        aligned = "  ".join(f"{row[key]:<{width}}" for key, width in zip(keys, widths, strict=True))
        if _width() - left >= _NARROWEST:
            wrapped = _filled(row[text], width=_width() - left)
            print(f"{aligned}  {textwrap.indent(wrapped, ' ' * left).lstrip()}")
        else:
            print(aligned.rstrip() if left - 2 <= _width() else _filled("  ".join(row[key] for key in keys)))
            print(_filled(row[text], indent="    "))
