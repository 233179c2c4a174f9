"""Checkpoints: a folder of safetensors, JSON and a manifest with checksums. Nothing is ever unpickled.

A checkpoint is written beside its place, synced to disk and renamed, so that at any moment a folder with its proper
name is whole. Loading verifies every checksum and falls back to the newest older checkpoint that is sound.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from starling.errors import UserError
from starling.types import NDArray

FORMAT = 1
NEWEST, BEST = "newest", "best"
_PREFIX = "step-"
_BEST = "best.json"
_UNFINISHED = ".unfinished-"


class BrokenCheckpointError(Exception):
    """A checkpoint that is not what was written: says which file and how."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest, one for every so many env steps, and the one with the best score."""

    newest: int = 3
    every: int | None = None
    best: bool = False


def save(
    root: Path, env_steps: int, state: dict[str, Any], *, retention: Retention, score: float | None = None
) -> Path:
    """Write `state` (nested dicts of arrays, tensors and JSON values) as the checkpoint of `env_steps`."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_UNFINISHED}{_PREFIX}*"):
        shutil.rmtree(leftover)
    name = f"{_PREFIX}{env_steps:012d}"
    draft, final = root / f"{_UNFINISHED}{name}", root / name
    if final.exists() and is_sound(final):
        return final
    draft.mkdir()
    for part, value in state.items():
        arrays: dict[str, NDArray] = {}
        _write_synced(draft / f"{part}.json", json.dumps(_split(value, part, arrays)).encode())
        if arrays:
            save_file(arrays, draft / f"{part}.safetensors")
            _sync(draft / f"{part}.safetensors")
    files = {file.name: {"sha256": _sha256(file), "bytes": file.stat().st_size} for file in sorted(draft.iterdir())}
    manifest = {"format": FORMAT, "env_steps": env_steps, "files": files}
    _write_synced(draft / "manifest.json", json.dumps(manifest, indent=1).encode())
    _sync(draft)
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    _sync(root)
    if retention.best and score is not None:
        _note_best(root, name, score)
    _prune(root, retention)
    return final


def _note_best(root: Path, name: str, score: float) -> None:
    known = best(root)
    if known is None or score > known[1]:
        draft = root / f"{_UNFINISHED}{_BEST}"
        _write_synced(draft, json.dumps({"checkpoint": name, "score": score}).encode())
        draft.replace(root / _BEST)


def best(root: Path) -> tuple[str, float] | None:
    """The name and score of the best checkpoint, where one is known and still there."""
    try:
        note = json.loads((root / _BEST).read_text())
        name, score = str(note["checkpoint"]), float(note["score"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (name, score) if (root / name).is_dir() else None


def _prune(root: Path, retention: Retention) -> None:
    folders = list(_newest_first(root))
    kept = {folder.name for folder in folders[: retention.newest]}
    if retention.best and (known := best(root)) is not None:
        kept.add(known[0])
    if retention.every is not None:
        oldest_first = [(int(f.name.removeprefix(_PREFIX)) // retention.every, f.name) for f in reversed(folders)]
        kept |= {name for (before, _), (age, name) in pairwise([(0, ""), *oldest_first]) if age != before}
    for folder in folders:
        if folder.name not in kept:
            shutil.rmtree(folder)


def load(folder: Path) -> dict[str, Any]:
    """The state of one checkpoint; raises `BrokenCheckpointError` unless every byte is as it was written."""
    state = {}
    for part in _verify(folder):
        document = json.loads((folder / f"{part}.json").read_text())
        binary = folder / f"{part}.safetensors"
        state[part] = _join(document, load_file(binary) if binary.exists() else {})
    return state


def is_sound(folder: Path) -> bool:
    """Whether every byte is as it was written."""
    try:
        return bool(_verify(folder))
    except BrokenCheckpointError:
        return False


def find(root: Path, which: str = NEWEST) -> tuple[Path, dict[str, Any], list[str]]:
    """The checkpoint called `which` (newest, best, or its env steps), its state, and what was wrong with newer ones.

    Only the newest has others to fall back to.
    """
    if which == NEWEST:
        return _load_newest(root)
    known = {folder.name: folder for folder in _newest_first(root)}
    top = best(root)
    name = (top[0] if top else "") if which == BEST else f"{_PREFIX}{int(which):012d}" if which.isdigit() else which
    if name not in known:
        steps = ", ".join(str(int(n.removeprefix(_PREFIX))) for n in sorted(known)) or "none"
        raise UserError(f"no checkpoint {which!r} in {root} (there are: newest, {'best, ' if top else ''}{steps})")
    try:
        return known[name], load(known[name]), []
    except BrokenCheckpointError as error:
        raise UserError(f"{error}; choose another with --checkpoint") from None


def _load_newest(root: Path) -> tuple[Path, dict[str, Any], list[str]]:
    problems: list[str] = []
    for folder in _newest_first(root):
        try:
            return folder, load(folder), problems
        except BrokenCheckpointError as error:
            problems.append(str(error))
    detail = "; ".join(problems) or "there is none"
    raise UserError(f"no usable checkpoint in {root}: {detail}")


def _newest_first(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob(f"{_PREFIX}*"), reverse=True)


def _verify(folder: Path) -> list[str]:
    """Check every file against the manifest; the names of the parts."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        files: dict[str, dict[str, Any]] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BrokenCheckpointError(f"{folder.name}: the manifest is missing or unreadable") from None
    if manifest.get("format") != FORMAT:
        raise BrokenCheckpointError(f"{folder.name}: format {manifest.get('format')} is not {FORMAT}")
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise BrokenCheckpointError(f"{folder.name}: {name} is missing")
        if file.stat().st_size != expected["bytes"]:
            raise BrokenCheckpointError(
                f"{folder.name}: {name} has {file.stat().st_size} bytes, not {expected['bytes']}"
            )
        if _sha256(file) != expected["sha256"]:
            raise BrokenCheckpointError(f"{folder.name}: {name} was altered (its checksum differs)")
    return [name.removesuffix(".json") for name in files if name.endswith(".json")]


def _split(value: Any, path: str, arrays: dict[str, NDArray]) -> Any:
    """JSON for `value`; arrays move to `arrays` and leave a reference behind."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"state at {path} has keys that are not strings")
        return {"dict": {key: _split(child, f"{path}/{key}", arrays) for key, child in value.items()}}
    if isinstance(value, torch.Tensor):
        arrays[path] = np.asarray(value.detach().cpu().numpy(), order="C")
        return {"tensor": path}
    if isinstance(value, np.ndarray):
        arrays[path] = np.asarray(value, order="C")
        return {"array": path}
    json.dumps(value)  # fails here, with the value at hand, rather than far away
    return {"value": value}


def _join(document: dict[str, Any], arrays: dict[str, NDArray]) -> Any:
    ((kind, content),) = document.items()
    if kind == "dict":
        return {key: _join(child, arrays) for key, child in content.items()}
    if kind == "tensor":
        return torch.from_numpy(arrays[content])
    return arrays[content] if kind == "array" else content


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write_synced(file: Path, content: bytes) -> None:
    with file.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _sync(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
