"""Loads a checked `Config` from a preset or a file and overrides; all mistakes are reported together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from starling.config import describe, secrets
from starling.config.algorithms import ALGORITHMS, AlgoConfig, config_class
from starling.config.dialect import MAX_CHARACTERS, dump, on_one_line, parse, show
from starling.config.env import wrapper_list
from starling.config.merging import Settings, schema_for
from starling.config.mistakes import explain, keys_to, nearest_choice
from starling.config.parts import Part
from starling.config.schema import Config
from starling.errors import UserError, did_you_mean, quoted

_SHOWN = 8  # missing keys in a message
_MOST_MISTAKES = 20  # explained in one message; suggesting keys for thousands would take minutes
_MOST_BASES = 16  # files that one derives from
PRESETS = resources.files("starling.config") / "presets"
Vet = Callable[[str, dict[str, Any]], None]
"""Inspects a file, by name and content, and then each that it derives from; raises `UserError` to refuse one."""


def preset_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in PRESETS.iterdir() if entry.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Return the YAML of a preset."""
    if name not in preset_names():
        if Path(name).is_dir():
            raise UserError(f"{name} is a folder; to use the settings of a run give {Path(name) / 'config.yaml'}")
        raise UserError(
            f"unknown preset {quoted(name)}{did_you_mean(name, preset_names())}"
            " (starling presets lists them; a file of your own must end in .yaml)"
        )
    return (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def load(
    source: str,
    overrides: Sequence[str] = (),
    *,
    derive: bool = True,
    vet: Vet | None = None,
    imports: bool = True,
) -> Config:
    """Load the configuration of `source` (a preset's name or a YAML file) with `key.sub=value` overrides on top.

    The key `base` of a file names the preset or file it derives from. `derive=False` is for the file of a run, which is
    complete: it refuses that key, and a file with missing keys. `vet` is called with each file before
    anything named there is imported, and may refuse it. `imports=False` imports nothing: the settings of an algorithm
    that is not built in are not checked.
    """
    if overrides and not derive:
        load(source, derive=False, vet=vet, imports=imports)
    settings, mistakes = merge(source, overrides, derive=derive, vet=vet, imports=imports)
    config, more = check(settings.values, settings.origin, imports=imports)
    config = _or_raise(config, mistakes + more)
    if not derive and not overrides:
        _check_complete(source, to_saved(config), settings.values)
    return config


def _check_complete(source: str, whole: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise `UserError` if the file lacks any key of its configuration."""
    if lacking := list(_lacking(whole, given)):
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise UserError(
            f"{source} lacks {', '.join(lacking[:_SHOWN])}{more} (is it cut off?): the configuration of a run is"
            " complete, and nothing is taken from defaults; put back what is missing"
        )


def _lacking(whole: dict[str, Any], given: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in whole.items():
        if key not in given:
            yield f"{prefix}{key}"
        elif isinstance(value, dict) and isinstance(given[key], dict):
            yield from _lacking(value, given[key], f"{prefix}{key}.")


def from_dict(values: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Build a checked configuration from plain data and `key.sub=value` overrides on top.

    Raises one `UserError` with one line per mistake.
    """
    if not overrides:
        return _or_raise(*check(values))
    settings = Settings()
    settings.add_file(values, "")
    mistakes = settings.add_overrides(overrides)
    config, more = check(settings.values)
    return _or_raise(config, mistakes + more)


def _or_raise(config: Config | None, mistakes: list[str]) -> Config:
    if config is None or mistakes:
        raise UserError(*mistakes)
    return config


def merge(
    source: str, overrides: Sequence[str], *, derive: bool = True, vet: Vet | None = None, imports: bool = True
) -> tuple[Settings, list[str]]:
    """Merge `source` and `overrides` unchecked; also return one line per override that cannot be applied."""
    settings = Settings(imports=imports)
    files = read_files(source, derive)
    for name, values in reversed(files):
        if vet is not None:
            vet(name, values)
    for name, values in files:
        settings.add_file(values, "" if name == source else name)
    return settings, settings.add_overrides(overrides)


def check(
    values: dict[str, Any],
    origin: Callable[[Sequence[str]], str | None] = lambda path: None,
    *,
    imports: bool = True,
) -> tuple[Config | None, list[str]]:
    """Validate plain data: return the configuration, or None and all mistakes.

    `origin` returns the file that the value at a path comes from, if messages should name it.
    """
    name: str | None = None
    model, mistakes = Config, list[str]()
    values, references = secrets.resolve(_with_wrapper_list(values), mistakes)
    unset = {tuple(map(str, path)) for path, text in references.items() if secrets.is_unset(text)}
    try:
        model = _model_for(settings := config_class(name := _algo_name(values), imports=imports))
    except UserError as error:  # the rest can still be checked
        name = None
        if ("algo", "name") not in unset:
            mistakes.append(f"{error}{_told(origin(('algo', 'name')))}")
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        schema = schema_for(name, settings) if name else describe.json_schema()
        found = [(keys_to(schema, problem["loc"]), problem) for problem in error.errors()]
        found = [(path, p) for path, p in found if (name or path[:1] != ["algo"]) and tuple(path) not in unset]
        lines = (f"{explain(schema, values, problem)}{_told(origin(path))}" for path, problem in found[:_MOST_MISTAKES])
        more = [f"and {len(found) - _MOST_MISTAKES:,} more mistakes"] if len(found) > _MOST_MISTAKES else []
        return None, list(dict.fromkeys([*mistakes, *lines, *more]))
    if mistakes:
        return None, mistakes
    if references:
        plain = to_dict(config)
        config.references.update({path: (text, secrets.at(plain, path)) for path, text in references.items()})
        if lost := [path for path, (_, value) in config.references.items() if value is None]:
            keys = (".".join(map(str, path)) for path in lost)
            return None, [f"{quoted(key)}: a reference to an environment variable cannot stand here" for key in keys]
    return config, []


def _with_wrapper_list(values: dict[str, Any]) -> dict[str, Any]:
    """Convert wrappers to the list in which they are saved, so that references in them are found again there."""
    env = values.get("env")
    if not isinstance(env, dict) or not isinstance(env.get("wrappers"), dict):
        return values
    with suppress(ValueError):  # reported by the check
        return {**values, "env": {**env, "wrappers": wrapper_list(env["wrappers"])}}
    return values


def _told(file: str | None) -> str:
    return f" (in {file})" if file else ""


def _algo_name(values: dict[str, Any]) -> str:
    algo = values.get("algo")
    if algo is not None and not isinstance(algo, dict):
        near = nearest_choice(algo, [name for name, _ in ALGORITHMS])
        hint = f"did you mean algo.name={near}?" if near else "name an algorithm, e.g. algo.name=ppo"
        raise UserError(f"algo: must be a section, not {show(algo)}; {hint}")
    name = algo.get("name") if algo else None
    if not isinstance(name, str):
        raise UserError("algo.name is missing; name an algorithm, e.g. algo.name=ppo")
    return name


@cache
def _model_for(algo: type[AlgoConfig]) -> type[Config]:
    """`Config` with `algo` narrowed to one algorithm's settings, so that errors in them have a path."""
    return create_model("Config", __base__=Config, algo=(algo, Config.model_fields["algo"]))


def to_dict(config: Config) -> dict[str, Any]:
    """Convert to plain data; `from_dict` restores the same configuration even if environment variables differ."""
    return config.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def to_saved(config: Config) -> dict[str, Any]:
    """Convert to plain data for a file: references to environment variables are kept as written."""
    values = to_dict(config)
    secrets.restore(values, config.references)
    return values


def to_shown(config: Config) -> dict[str, Any]:
    """Convert to plain data for printing: as saved, with apparent secrets hidden."""
    shown: dict[str, Any] = secrets.hide(to_saved(config))
    return shown


def secret_values(config: Config) -> list[str]:
    """Texts that must not be printed: apparent secrets and values of environment variables, longest first."""
    found = {value for _, value in secrets.literal_secrets(to_dict(config))}
    found |= {value for _, value in config.references.values() if isinstance(value, str)}
    found |= {value for text, _ in config.references.values() for value in secrets.variables(text)}
    return sorted((value for value in found if len(value) >= secrets.LEAST_SECRET), key=len, reverse=True)


def secrets_warning(config: Config) -> str | None:
    """Return a warning about literal secrets in a configuration; None if there are none."""
    keys = [key for key, _ in secrets.literal_secrets(to_saved(config))]
    if not keys:
        return None
    return (
        f"warning: {', '.join(keys)} {'look' if len(keys) > 1 else 'looks'} like a secret in the"
        " configuration: it is hidden wherever it is printed, and only you may read the run's config.yaml; better write"
        " ${env:NAME}, which is read from the environment and never saved"
    )


def differences(one: Any, other: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the dotted keys at which two results of `to_dict` differ, with both values or `(none)`."""
    for key in dict.fromkeys([*one, *other]):
        here, there = one.get(key, "(none)"), other.get(key, "(none)")
        if isinstance(here, dict) and isinstance(there, dict):
            yield from differences(here, there, f"{prefix}{key}.")
        elif here != there:
            yield f"{prefix}{key}", (here, there)


def to_yaml(config: Config, *, comments: bool = False, hidden: bool = False) -> str:
    """Format as YAML that `load` reads back into the same configuration; `comments` describe every key.

    With `hidden`, for display, apparent secrets are hidden.
    """
    values = to_shown(config) if hidden else to_saved(config)
    if not comments:
        return dump(values)
    lines = _commented(config, values, "")
    column = max(len(text) for text, _ in lines if len(text) <= 40) + 2
    return "".join(f"{text:<{column - 2}}  # {about}\n" if about else f"{text}\n" for text, about in lines)


def _commented(part: Part, values: dict[str, Any], indent: str) -> list[tuple[str, str]]:
    """Lines of YAML, each with its description."""
    lines = []
    for name, field in type(part).model_fields.items():
        key, value = field.alias or name, getattr(part, name)
        section = isinstance(value, Part) and isinstance(values[key], dict)  # or one value that stands for it
        text = f"{indent}{key}:" if section else f"{indent}{key}: {on_one_line(values[key])}"
        lines.append((text, " ".join((field.description or "").split())))
        if section:
            lines += _commented(value, values[key], f"{indent}  ")
    return lines + [(f"{indent}{key}: {on_one_line(values[key])}", "") for key in part.model_extra or ()]


def read_files(source: str, derive: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Read `source` and the chain of its `base` files, each with its name, the last base first."""
    files: list[tuple[str, dict[str, Any]]] = []
    seen: list[str] = []
    characters = 0
    while True:
        seen.append(str(Path(source).resolve()) if is_file(source) else source)
        text = _file_text(Path(source)) if is_file(source) else preset_text(source)
        values = parse(text, source)
        characters += len(text)
        if not isinstance(values, dict):
            raise UserError(f"{source} must hold keys and values at its top level")
        files.insert(0, (source, values))
        if "base" not in values:
            return files
        if not derive:
            raise UserError(f"{source} has the key base, but the configuration of a run is complete: remove the key")
        if len(files) > _MOST_BASES or characters >= MAX_CHARACTERS:
            raise UserError(
                f"{files[-1][0]} derives from more than {_MOST_BASES} files, or has more than {MAX_CHARACTERS:,}"
                " characters with them, which no configuration needs"
            )
        source = _base(source, values.pop("base"), seen)


def _base(source: str, base: Any, seen: list[str]) -> str:
    """Resolve the `base` key of `source`; paths are relative to the file that contains them."""
    if not isinstance(base, str) or not base:
        raise UserError(f"{source}: base must be a preset's name or a YAML file, not {show(base)}")
    if not is_file(base):
        if base not in preset_names():
            raise UserError(
                f"{source}: base names an unknown preset {quoted(base)}{did_you_mean(base, preset_names())}"
                " (starling presets lists them; a file of your own must end in .yaml)"
            )
        name = found = base
    else:
        path = Path(source).parent / base if is_file(source) else Path(base)
        if not path.is_file():
            raise UserError(f"{source}: base names a file that is not there: {path}")
        name, found = str(path), str(path.resolve())
    if found in seen:
        raise UserError(f"{source}: base={name} is circular: {' -> '.join([*seen, found])}")
    return name


def is_file(source: str) -> bool:
    """Return True if `source` is a YAML file, not a preset."""
    return Path(source).suffix in (".yaml", ".yml")


def _file_text(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_CHARACTERS + 1)  # one more than allowed, to be refused
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
