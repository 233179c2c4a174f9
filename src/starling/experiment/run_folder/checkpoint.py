"""Checkpoints: a folder of safetensors, JSON, and a manifest with checksums. Nothing is ever unpickled.

The state is a dict of parts; each is `PART.json` and, if it has arrays, `PART.safetensors`. Every runtime saves `store`
(env steps; also tables and limiter if `checkpoint.replay` is on), `learner` (networks, optimizers), `incarnations` of
the groups of envs, and `evaluator`; `inline` adds `env`, and `loops` and `policies` if the checkpoint is exact. The
session adds `session`. See `save` of each runtime and `Session._take_state`. Large arrays that change gradually, those
of the tables, are in *segments*: files beside the checkpoints, which several of them share.

Order of writes (`write`), each synced to disk before the next:

1. What an earlier save left half done is removed or undone (`recover`).
2. The segments that are not there yet.
3. The folder under a temporary name: the parts, then the manifest.
4. Its final name, under which a checkpoint is complete. An older one of the same env steps is moved aside before and
   removed after; if the process dies between the two renames, `recover` moves it back.
5. `best.json`, if its score is the best so far.
6. Old checkpoints are removed as `Retention` says, then the segments that none refers to any more.

Loading verifies every checksum and falls back to the newest older checkpoint that is valid.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from starling.config.bounded_json import parse_json
from starling.errors import UserError, printable
from starling.experiment.run_folder.arrays import read_arrays, write_arrays
from starling.experiment.run_folder.checkpoint_schema import NAME, CheckpointManifest, FileEntry, parse_manifest
from starling.experiment.run_folder.disk import (
    is_folder,
    make_folder,
    publish,
    read_bounded,
    remove_tree,
    rename,
    sha256,
    sync,
    write_synced,
)
from starling.experiment.run_folder.rows import to_json
from starling.experiment.run_folder.segments import Stored, sweep, what_is_wrong, write_segments
from starling.state_io import Frozen, FrozenPart, Segmented, thaw

FORMAT = 2
READABLE = (1, FORMAT)
"""Formats that can be read; format 1 is the same without segments."""
NEWEST, BEST = "newest", "best"
_PREFIX = "step-"
_BEST = "best.json"
_UNFINISHED = ".unfinished-"
_REPLACED = ".replaced-"
_MOST_BYTES = 2**26  # of all JSON documents; large data is in arrays and segments
_MOST_VALUES = 250_000  # of a document
_LONGEST_MANIFEST, _MOST_IN_MANIFEST = 2**24, 500_000  # bytes and values
TRIED = 10
"""Number of the newest checkpoints to try until one is valid."""
_TOLD = 3  # broken checkpoints that a message names; a list of known checkpoints has ten times as many
_MOST_SWEPT = 1000  # checkpoints

Check = Callable[[dict[str, Any]], None]
"""A function that raises ValueError for a state that the caller cannot use."""
ByteLimits = Mapping[str, int]
"""Largest size in bytes of the arrays and segments of each part, by name; other parts may have `_MOST_BYTES`.

Without limits, the memory of the machine is the limit.
"""
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError)
_MISFITS = (*_DAMAGE, IndexError, ArithmeticError, AssertionError, RuntimeError, StopIteration)


class BrokenCheckpointError(Exception):
    """A checkpoint is damaged; the message names the file and the problem."""


@dataclass(frozen=True)
class Retention:
    """Checkpoints to keep: the `newest` ones, one for every `every` env steps, and the one with the best score."""

    newest: int = 3
    every: int | None = None
    best: bool = False


def write(root: Path, env_steps: int, frozen: Frozen, *, retention: Retention, score: float | None = None) -> Path:
    """Write a frozen state as the checkpoint of `env_steps`; removes partial files if that fails."""
    name = f"{_PREFIX}{env_steps:012d}"
    partial, final = root / f"{_UNFINISHED}{name}", root / name
    segments = deque(part for leaf in _segments(frozen).values() for part in leaf.parts)
    try:
        make_folder(root)
        recover(root)
        write_segments(root, segments)
        make_folder(partial)
        _fill(partial, env_steps, frozen)
        _rename_to_final(partial, final)
    except OSError:
        with suppress(OSError):
            recover(root)  # on a full disk, other files need the space
        raise
    finally:
        for segment in segments:  # after an error, the rest will not be read
            segment.release()
    try:
        if retention.best and score is not None and math.isfinite(score):
            _note_best(root, name, score)
    finally:
        _prune(root, name, retention)
        _sweep(root)
    return final


def recover(root: Path) -> None:
    """Remove what a killed or failed save left partly written or removed, and restore the checkpoint it was replacing.

    Also removes unused segments, unless that would mean to read very many checkpoints.
    """
    if is_folder(root / _BEST):
        raise UserError(f"{root / _BEST} is a folder, and the best checkpoint is noted there: remove it")
    for leftover in _named(root, _UNFINISHED):
        remove_tree(leftover)
    for replaced in _named(root, _REPLACED):
        final = root / replaced.name.removeprefix(_REPLACED)
        if not final.exists():
            rename(replaced, final)
        sync(root)
        if replaced.exists():
            remove_tree(replaced)
    if len(_named(root, "")) <= _MOST_SWEPT:
        _sweep(root)


def _rename_to_final(partial: Path, final: Path) -> None:
    """Give a complete checkpoint its final name; an older one of the same env steps is removed only after that."""
    root, replaced = final.parent, final.with_name(f"{_REPLACED}{final.name}")
    if _is_same(final, partial):
        remove_tree(partial)
        return
    if final.exists():  # there were more updates since, or it is damaged
        rename(final, replaced)
    rename(partial, final)
    sync(root)
    if replaced.exists():
        remove_tree(replaced)


def _is_same(one: Path, other: Path) -> bool:
    """Return True if a checkpoint exists, is valid, and equals another."""
    try:
        return one.exists() and _read_manifest(one) == _read_manifest(other) and is_sound(one)
    except BrokenCheckpointError:
        return False


def _fill(partial: Path, env_steps: int, frozen: Frozen) -> None:
    """Write all of a checkpoint but its segments, and sync it to disk."""
    for name, part in frozen.items():
        write_synced(partial / f"{name}.json", json.dumps(part.document, allow_nan=False).encode())
        if part.arrays:
            write_arrays(partial / f"{name}.safetensors", part.arrays)
    files = {file.name: {"sha256": sha256(file), "bytes": file.stat().st_size} for file in sorted(partial.iterdir())}
    named = {path: [[part.name, part.size] for part in leaf.parts] for path, leaf in _segments(frozen).items()}
    manifest = {"format": FORMAT, "env_steps": env_steps, "files": files, "segments": named}
    write_synced(partial / "manifest.json", to_json(manifest, indent=1))
    sync(partial)


def _segments(frozen: Frozen) -> dict[str, Segmented]:
    return {path: leaf for part in frozen.values() for path, leaf in part.segments.items()}


def _sweep(root: Path) -> None:
    """Remove unused segments; none if a manifest cannot be read, since it may still be repaired."""
    try:
        manifests = [_read_manifest(folder) for folder in _newest_first(root)]
    except BrokenCheckpointError:
        return
    sweep(root, {name for manifest in manifests for parts in manifest.segments.values() for name, _ in parts})


def segment_names(folder: Path) -> dict[str, list[str]]:
    """Return the checksums of a checkpoint's segments by their path in the state; {} if the manifest is unreadable."""
    try:
        named = _read_manifest(folder).segments
    except BrokenCheckpointError:
        return {}
    return {path: [name for name, _ in parts] for path, parts in named.items()}


def _note_best(root: Path, name: str, score: float) -> None:
    known = best(root)
    if known is None or score > known[1]:
        publish(root / _BEST, to_json({"checkpoint": name, "score": score}))


def best(root: Path) -> tuple[str, float] | None:
    """Return the name and score of the best checkpoint; None if it is not known or was removed."""
    try:
        return _read_best(root)
    except BrokenCheckpointError:
        return None


def best_problem(root: Path) -> str | None:
    """Return the problem with `best.json`; None if there is none, or the file does not exist yet."""
    try:
        _read_best(root)
    except BrokenCheckpointError as error:
        return str(error) if os.path.lexists(root / _BEST) else None
    return None


def _read_best(root: Path) -> tuple[str, float]:
    """Return the name and score of the best checkpoint; raises `BrokenCheckpointError` if it is unknown or gone."""
    try:
        note = parse_json(read_bounded(root / _BEST, 2**16))
        name, score = str(note["checkpoint"]), float(note["score"])
    except FileNotFoundError:
        raise BrokenCheckpointError(f"{_BEST} is not there, which an evaluated run writes") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise BrokenCheckpointError(f"{_BEST} is damaged") from None
    if not (math.isfinite(score) and NAME.fullmatch(name)):
        raise BrokenCheckpointError(f"{_BEST} is damaged")
    if not is_folder(root / name):
        raise BrokenCheckpointError(f"{_BEST} names {name}, which is not there")
    return name, score


def _prune(root: Path, written: str, retention: Retention) -> None:
    """Remove old checkpoints; one later than the one just `written` is damaged, but may still be repaired."""
    folders = [folder for folder in _newest_first(root) if folder.name <= written]
    kept = {folder.name for folder in folders[: retention.newest]}
    if retention.best and (known := best(root)) is not None:
        kept.add(known[0])
    if retention.every is not None:
        oldest_first = [(steps_of(f) // retention.every, f.name) for f in reversed(folders)]
        kept |= {name for (before, _), (age, name) in pairwise([(0, ""), *oldest_first]) if age != before}
    dropped = {folder: root / f"{_UNFINISHED}{folder.name}" for folder in folders if folder.name not in kept}
    for folder, unnamed in dropped.items():
        rename(folder, unnamed)
    if dropped:
        sync(root)  # under its final name, a checkpoint is complete until it is gone
    for unnamed in dropped.values():
        remove_tree(unnamed)


def load(
    folder: Path,
    parts: Collection[str] | None = None,
    check: Check = lambda state: None,
    limits: ByteLimits | None = None,
) -> dict[str, Any]:
    """Load the state of one checkpoint, or only `parts` of it; the other files are not read.

    Raises:
        BrokenCheckpointError: A checksum differs, or the state is invalid, exceeds `limits`, or fails `check`.
    """
    manifest = _verify(folder, parts, limits)
    state = {}
    for part in _parts(manifest, parts):
        try:
            state[part] = _load_part(folder, manifest, part)
        except _DAMAGE as error:
            raise BrokenCheckpointError(f"{folder.name}: part {part} is not a state ({_reason(error)})") from None
    try:
        check(state)
    except ValueError as error:
        raise BrokenCheckpointError(f"{folder.name}: {error}") from None
    return state


def _load_part(folder: Path, manifest: CheckpointManifest, part: str) -> Any:
    """Load one part of the state, only from files that the manifest lists."""
    document = parse_json(read_bounded(folder / f"{part}.json", _MOST_BYTES), most=_MOST_VALUES)
    binary = f"{part}.safetensors"
    arrays = read_arrays(folder / binary) if binary in manifest.files else {}
    stored = {
        path: Segmented(tuple(Stored(folder.parent, name, size) for name, size in named))
        for path, named in _segments_of(manifest, part).items()
    }
    return thaw(FrozenPart(document, arrays, stored))


def _reason(error: BaseException) -> str:
    """Describe an error in one line; it may quote the content of a file, so it is made printable."""
    text = " ".join((error.strerror or "" if isinstance(error, OSError) else str(error)).split())
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)


@contextmanager
def fitting(source: str) -> Iterator[None]:
    """Raise a `UserError` instead of a traceback if an undamaged state cannot be restored."""
    try:
        yield
    except _MISFITS as error:
        raise UserError(
            f"{source} does not fit this run ({_reason(error)}): choose another checkpoint with --checkpoint"
        ) from error


def is_sound(folder: Path, limits: ByteLimits | None = None) -> bool:
    """Return True if all sizes and checksums are as they were written."""
    try:
        return bool(_verify(folder, None, limits))
    except BrokenCheckpointError:
        return False


def audit(root: Path) -> list[tuple[str, str | None]]:
    """Verify the checksums of the newest checkpoints: their names, newest first, each with what is wrong with it."""
    found: list[tuple[str, str | None]] = []
    for folder in islice(_newest_first(root), TRIED):
        try:
            _verify(folder, None, None)
        except BrokenCheckpointError as error:
            if folder.exists():  # else the run has pruned it meanwhile
                found.append((folder.name, str(error)))
        else:
            found.append((folder.name, None))
    return found


def find(
    root: Path,
    which: str = NEWEST,
    parts: Collection[str] | None = None,
    check: Check = lambda state: None,
    limits: ByteLimits | None = None,
) -> tuple[Path, dict[str, Any], list[str]]:
    """Load the checkpoint called `which` (newest, best, or its env steps).

    Returns its path, its state, and the problems of newer ones that were skipped. Only "newest" falls back to older
    checkpoints. If `parts` are named, only these are read and verified. A state that exceeds `limits` or fails `check`
    counts as broken.
    """
    if which == NEWEST:
        return _load_newest(root, parts, check, limits)
    chosen = _called(root, which)
    try:
        return chosen, load(chosen, parts, check, limits), []
    except BrokenCheckpointError as error:
        raise UserError(f"{error}; choose another with --checkpoint") from None


def _called(root: Path, which: str) -> Path:
    """Return the checkpoint called "best", or the one with these env steps or this name."""
    known = {folder.name: folder for folder in _newest_first(root)}
    if which == BEST:
        try:
            return known[_read_best(root)[0]]
        except BrokenCheckpointError as error:
            raise UserError(f"no best checkpoint in {root}: {error}; choose another with --checkpoint") from None
    top = best(root)
    is_steps = which.isascii() and which.isdigit() and len(which) <= 18
    name = f"{_PREFIX}{int(which):012d}" if is_steps else which
    if name not in known:
        newest = [str(steps_of(folder)) for folder in islice(known.values(), 10 * _TOLD)]
        more = [f"and {len(known) - len(newest):,} older"] if len(known) > len(newest) else []
        steps = ", ".join([*reversed(newest), *more]) or "none"
        raise UserError(f"no checkpoint {which[:80]!r} in {root} (there are: newest, {'best, ' if top else ''}{steps})")
    return known[name]


def later_than(root: Path, which: str, limits: ByteLimits | None = None) -> list[str]:
    """Return the env steps of valid checkpoints, among the newest, that are later than the one called `which`."""
    if which == NEWEST:
        return []
    chosen = _called(root, which)
    newest = islice(_newest_first(root), TRIED)
    return [str(steps_of(f)) for f in newest if steps_of(f) > steps_of(chosen) and is_sound(f, limits)]


def _load_newest(
    root: Path, parts: Collection[str] | None, check: Check, limits: ByteLimits | None
) -> tuple[Path, dict[str, Any], list[str]]:
    problems: list[str] = []
    folders = list(_newest_first(root))
    for folder in folders[:TRIED]:
        try:
            return folder, load(folder, parts, check, limits), _shortened(problems)
        except BrokenCheckpointError as error:
            problems.append(str(error))
    detail = "; ".join(_shortened(problems)) or "there is none"
    if len(folders) > TRIED:
        detail += f"; of {len(folders):,} the newest {TRIED} were looked at: name an older one with --checkpoint"
    raise UserError(f"no usable checkpoint in {root}: {detail}")


def _shortened(problems: list[str]) -> list[str]:
    """Return the first problems, and how many more there are."""
    more = len(problems) - _TOLD
    return [*problems[:_TOLD], f"and {more} more"] if more > 0 else problems


def newest_sound(root: Path) -> Path | None:
    """Return the newest valid checkpoint, or None."""
    return next(filter(is_sound, islice(_newest_first(root), TRIED)), None)


def steps_of(folder: Path) -> int:
    """Return the env steps of a checkpoint, from its name."""
    return int(folder.name.removeprefix(_PREFIX))


def _newest_first(root: Path) -> Iterator[Path]:
    yield from sorted(_named(root, ""), key=steps_of, reverse=True)


def _named(root: Path, prefix: str) -> list[Path]:
    """Return the folders (no links) whose name is `prefix` and the name of a checkpoint."""
    found = root.glob(f"{prefix}{_PREFIX}*")
    return [path for path in found if NAME.fullmatch(path.name.removeprefix(prefix)) and is_folder(path)]


def _verify(folder: Path, parts: Collection[str] | None, limits: ByteLimits | None) -> CheckpointManifest:
    """Check the files of these parts (None: all) against the manifest and return it; sizes first, then checksums."""
    manifest = _read_manifest(folder)
    wanted = _parts(manifest, parts)
    if sum(manifest.files[f"{part}.json"].bytes for part in wanted) > _MOST_BYTES:
        raise BrokenCheckpointError(f"{folder.name}: its documents have more than {_MOST_BYTES:,} bytes")
    sizes = (problem for part in wanted for problem in _wrong_sizes(folder, manifest, part, limits))
    content = (problem for part in wanted for problem in _wrong_content(folder, manifest, part))
    for problem in chain(sizes, content):
        raise BrokenCheckpointError(f"{folder.name}: {problem}")
    return manifest


def _read_manifest(folder: Path) -> CheckpointManifest:
    try:
        document = parse_json(read_bounded(folder / "manifest.json", _LONGEST_MANIFEST), most=_MOST_IN_MANIFEST)
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise BrokenCheckpointError(f"{folder.name}: the manifest is missing or unreadable")
    if type(document.get("format")) is not int or document["format"] not in READABLE:
        raise BrokenCheckpointError(f"{folder.name}: format {printable(document.get('format'))} is not {FORMAT}")
    try:
        return parse_manifest(document)
    except ValueError as error:
        raise BrokenCheckpointError(f"{folder.name}: the manifest is not valid ({error})") from None


def _parts(manifest: CheckpointManifest, wanted: Collection[str] | None) -> list[str]:
    there = [name.removesuffix(".json") for name in manifest.files if name.endswith(".json")]
    return [part for part in there if wanted is None or part in wanted]


def _segments_of(manifest: CheckpointManifest, part: str) -> dict[str, list[tuple[str, int]]]:
    """Return names and sizes of the segments of one part, by their path in the state."""
    return {path: named for path, named in manifest.segments.items() if path.split("/", 1)[0] == part}


def _files_of(folder: Path, manifest: CheckpointManifest, part: str) -> list[tuple[Path, FileEntry]]:
    return [(folder / name, entry) for name, entry in manifest.files.items() if name.split(".")[0] == part]


def _wrong_sizes(folder: Path, manifest: CheckpointManifest, part: str, limits: ByteLimits | None) -> Iterator[str]:
    """Yield problems with the file sizes of one part, and with the total size of its arrays and segments."""
    large = sum(size for named in _segments_of(manifest, part).values() for _, size in named)
    for file, expected in _files_of(folder, manifest, part):
        try:
            found = file.lstat().st_size
        except FileNotFoundError:
            yield f"{file.name} is missing"
            continue
        except OSError as error:
            yield f"{file.name} cannot be read: {error.strerror}"
            continue
        if found != expected.bytes:
            yield f"{file.name} has {found} bytes, not {expected.bytes}"
        large += found if file.suffix == ".safetensors" else 0
    if large > (_memory() if limits is None else limits.get(part, _MOST_BYTES)):
        yield f"part {part} has {large:,} bytes, which is more than this run can have, or too much for this machine"


def _wrong_content(folder: Path, manifest: CheckpointManifest, part: str) -> Iterator[str]:
    """Yield problems with the checksums of one part, small files first."""
    for file, expected in _files_of(folder, manifest, part):
        try:
            if sha256(file) != expected.sha256:
                yield f"{file.name} was altered (its checksum differs)"
        except OSError as error:
            yield f"{file.name} cannot be read: {error.strerror}"
    segments = {pair for named in _segments_of(manifest, part).values() for pair in named}  # equal ones share a file
    yield from filter(None, (what_is_wrong(folder.parent, name, size) for name, size in sorted(segments)))


def _memory() -> int:
    """Return the memory of this machine in bytes; the arrays of a checkpoint must fit."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
