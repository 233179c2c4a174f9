"""Checkpoints: a folder of safetensors, JSON and a manifest with checksums. Nothing is ever unpickled.

A checkpoint is written beside its place, synced to disk and renamed, so that at any moment a folder with its proper
name is whole. Old ones are removed after that. Loading verifies every checksum and falls back to the newest older
checkpoint that is sound.

What is large and changes little by little is in segments, which checkpoints share: they are written before the
checkpoint that names them and removed after the last one that did.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from starling.errors import UserError
from starling.frozen import Frozen, FrozenPart, thaw
from starling.runs.arrays import write_arrays
from starling.runs.disk import make_folder, publish, remove_tree, rename, sha256, sync, write_synced
from starling.runs.rows import to_json
from starling.runs.segments import Stored, sweep, what_is_wrong, write_segments
from starling.segments import Segmented

FORMAT = 2
READABLE = (1, FORMAT)
"""Format 1 knew no segments and is the same otherwise."""
NEWEST, BEST = "newest", "best"
_PREFIX = "step-"
_STEPS = re.compile("[0-9]{1,18}")  # nobody else's folders are looked at
_BEST = "best.json"
_UNFINISHED = ".unfinished-"
_REPLACED = ".replaced-"


class BrokenCheckpointError(Exception):
    """A checkpoint that is not what was written: says which file and how."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest, one for every so many env steps, and the one with the best score."""

    newest: int = 3
    every: int | None = None
    best: bool = False


def write(root: Path, env_steps: int, frozen: Frozen, *, retention: Retention, score: float | None = None) -> Path:
    """Write a frozen state as the checkpoint of `env_steps`; where that fails nothing of it is left behind."""
    name = f"{_PREFIX}{env_steps:012d}"
    draft, final = root / f"{_UNFINISHED}{name}", root / name
    segments = deque(part for leaf in _segments(frozen).values() for part in leaf.parts)
    try:
        make_folder(root)
        recover(root)
        write_segments(root, segments)
        make_folder(draft)
        _fill(draft, env_steps, frozen)
        _publish(draft, final)
    except OSError:
        with suppress(OSError):
            recover(root)  # others need the room on a full disk
        raise
    finally:
        for segment in segments:  # nobody will read what could not be written
            segment.release()
    try:
        if retention.best and score is not None and math.isfinite(score):
            _note_best(root, name, score)
    finally:
        _prune(root, name, retention)
        _sweep(root)
    return final


def recover(root: Path) -> None:
    """Remove what a killed or failed save left half-written or half-removed, and put back what it was replacing."""
    for leftover in root.glob(f"{_UNFINISHED}{_PREFIX}*"):
        remove_tree(leftover)
    for replaced in root.glob(f"{_REPLACED}{_PREFIX}*"):
        final = root / replaced.name.removeprefix(_REPLACED)
        if not final.exists():
            rename(replaced, final)
        sync(root)
        if replaced.exists():
            remove_tree(replaced)
    _sweep(root)


def _publish(draft: Path, final: Path) -> None:
    """Give a whole checkpoint its name; one of the same env steps, if there is one, goes only after that."""
    root, replaced = final.parent, final.with_name(f"{_REPLACED}{final.name}")
    if _is_same(final, draft):
        remove_tree(draft)
        return
    if final.exists():  # updates were made since, or it is damaged
        rename(final, replaced)
    rename(draft, final)
    sync(root)
    if replaced.exists():
        remove_tree(replaced)


def _is_same(one: Path, other: Path) -> bool:
    """Whether a checkpoint is there, sound and equal to another."""
    return one.exists() and is_sound(one) and _read_manifest(one) == _read_manifest(other)


def _fill(draft: Path, env_steps: int, frozen: Frozen) -> None:
    """Everything of a checkpoint but its segments, on disk when this returns."""
    for name, part in frozen.items():
        write_synced(draft / f"{name}.json", json.dumps(part.document, allow_nan=False).encode())
        if part.arrays:
            write_arrays(draft / f"{name}.safetensors", part.arrays)
    files = {file.name: {"sha256": sha256(file), "bytes": file.stat().st_size} for file in sorted(draft.iterdir())}
    named = {path: [[part.name, part.size] for part in leaf.parts] for path, leaf in _segments(frozen).items()}
    manifest = {"format": FORMAT, "env_steps": env_steps, "files": files, "segments": named}
    write_synced(draft / "manifest.json", to_json(manifest, indent=1))
    sync(draft)


def _segments(frozen: Frozen) -> dict[str, Segmented]:
    return {path: leaf for part in frozen.values() for path, leaf in part.segments.items()}


def _sweep(root: Path) -> None:
    """Remove the segments that no checkpoint names; none while a manifest cannot be read, for it may yet be mended."""
    try:
        manifests = [_read_manifest(folder) for folder in _newest_first(root)]
    except BrokenCheckpointError:
        return
    sweep(root, {name for manifest in manifests for parts in manifest["segments"].values() for name, _ in parts})


def segment_names(folder: Path) -> dict[str, list[str]]:
    """The checksums of a checkpoint's segments, by their place in the state; none where the manifest is unreadable."""
    try:
        named = _read_manifest(folder)["segments"]
    except BrokenCheckpointError:
        return {}
    return {path: [name for name, _ in parts] for path, parts in named.items()}


def _note_best(root: Path, name: str, score: float) -> None:
    known = best(root)
    if known is None or score > known[1]:
        publish(root / _BEST, to_json({"checkpoint": name, "score": score}))


def best(root: Path) -> tuple[str, float] | None:
    """The name and score of the best checkpoint, where one is known and still there."""
    try:
        note = json.loads((root / _BEST).read_text())
        name, score = str(note["checkpoint"]), float(note["score"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (name, score) if math.isfinite(score) and (root / name).is_dir() else None


def _prune(root: Path, written: str, retention: Retention) -> None:
    """Remove old checkpoints; one that is later than what was just `written` is damaged, and may yet be mended."""
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
        sync(root)  # under its proper name a checkpoint is whole until it is gone
    for unnamed in dropped.values():
        remove_tree(unnamed)


def load(folder: Path, parts: Collection[str] | None = None) -> dict[str, Any]:
    """The state of one checkpoint, or only these `parts` of it, which alone are read.

    Raises `BrokenCheckpointError` unless every byte is as it was written.
    """
    manifest = _verify(folder, parts)
    state = {}
    for part in _parts(manifest, parts):
        document = json.loads((folder / f"{part}.json").read_text())
        binary = folder / f"{part}.safetensors"
        stored = {
            path: Segmented(tuple(Stored(folder.parent, name, size) for name, size in named))
            for path, named in _segments_of(manifest, part).items()
        }
        state[part] = thaw(FrozenPart(document, load_file(binary) if binary.exists() else {}, stored))
    return state


def is_sound(folder: Path) -> bool:
    """Whether every byte is as it was written."""
    try:
        return bool(_verify(folder, None))
    except BrokenCheckpointError:
        return False


def find(
    root: Path, which: str = NEWEST, parts: Collection[str] | None = None
) -> tuple[Path, dict[str, Any], list[str]]:
    """The checkpoint called `which` (newest, best, or its env steps), its state, and what was wrong with newer ones.

    Only the newest has others to fall back to. Of the state only `parts` are read and looked at, if they are named.
    """
    if which == NEWEST:
        return _load_newest(root, parts)
    chosen = _called(root, which)
    try:
        return chosen, load(chosen, parts), []
    except BrokenCheckpointError as error:
        raise UserError(f"{error}; choose another with --checkpoint") from None


def _called(root: Path, which: str) -> Path:
    """The checkpoint that is the best, or that has these env steps or this name."""
    known = {folder.name: folder for folder in _newest_first(root)}
    top = best(root)
    name = f"{_PREFIX}{int(which):012d}" if _STEPS.fullmatch(which) else which
    if which == BEST:
        name = top[0] if top else ""
    if name not in known:
        steps = ", ".join(str(int(n.removeprefix(_PREFIX))) for n in sorted(known)) or "none"
        raise UserError(f"no checkpoint {which[:80]!r} in {root} (there are: newest, {'best, ' if top else ''}{steps})")
    return known[name]


def later_than(root: Path, which: str) -> list[str]:
    """The env steps of sound checkpoints that are later than the one called `which`."""
    if which == NEWEST:
        return []
    chosen = _called(root, which)
    return [str(steps_of(f)) for f in _newest_first(root) if f.name > chosen.name and is_sound(f)]


def _load_newest(root: Path, parts: Collection[str] | None) -> tuple[Path, dict[str, Any], list[str]]:
    problems: list[str] = []
    for folder in _newest_first(root):
        try:
            return folder, load(folder, parts), problems
        except BrokenCheckpointError as error:
            problems.append(str(error))
    detail = "; ".join(problems) or "there is none"
    raise UserError(f"no usable checkpoint in {root}: {detail}")


def newest_sound(root: Path) -> Path | None:
    """The newest checkpoint of which every byte is as it was written."""
    return next(filter(is_sound, _newest_first(root)), None)


def steps_of(folder: Path) -> int:
    """The env steps after which a checkpoint was taken, from its name."""
    return int(folder.name.removeprefix(_PREFIX))


def _newest_first(root: Path) -> Iterator[Path]:
    found = (folder for folder in root.glob(f"{_PREFIX}*") if _STEPS.fullmatch(folder.name.removeprefix(_PREFIX)))
    yield from sorted(found, reverse=True)


def _verify(folder: Path, parts: Collection[str] | None) -> dict[str, Any]:
    """Check every file of these parts (None: of all) against the manifest, which it gives."""
    manifest = _read_manifest(folder)
    for part in _parts(manifest, parts):
        for problem in _problems(folder, manifest, part):
            raise BrokenCheckpointError(f"{folder.name}: {problem}")
    return manifest


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        manifest["files"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BrokenCheckpointError(f"{folder.name}: the manifest is missing or unreadable") from None
    if manifest.get("format") not in READABLE:
        raise BrokenCheckpointError(f"{folder.name}: format {manifest.get('format')} is not {FORMAT}")
    return {"segments": {}, **manifest}


def _parts(manifest: dict[str, Any], wanted: Collection[str] | None) -> list[str]:
    there = [name.removesuffix(".json") for name in manifest["files"] if name.endswith(".json")]
    return [part for part in there if wanted is None or part in wanted]


def _segments_of(manifest: dict[str, Any], part: str) -> dict[str, list[tuple[str, int]]]:
    """Names and sizes of the segments of a part of the state, by their place in it."""
    return {path: named for path, named in manifest["segments"].items() if path.split("/", 1)[0] == part}


def _problems(folder: Path, manifest: dict[str, Any], part: str) -> Iterator[str]:
    """What is wrong with the files of one part; the small ones are looked at first."""
    for name, expected in manifest["files"].items():
        file = folder / name
        if file.stem != part:
            continue
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != expected["bytes"]:
            yield f"{name} has {file.stat().st_size} bytes, not {expected['bytes']}"
        elif sha256(file) != expected["sha256"]:
            yield f"{name} was altered (its checksum differs)"
    for named in _segments_of(manifest, part).values():
        yield from filter(None, (what_is_wrong(folder.parent, name, size) for name, size in named))
