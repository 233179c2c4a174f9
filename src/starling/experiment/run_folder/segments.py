"""Segments on disk: one file each, named by the SHA-256 of its content and shared by several checkpoints."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Collection
from pathlib import Path

from starling.errors import UserError
from starling.experiment.run_folder.disk import (
    is_folder,
    make_folder,
    read_bounded,
    remove,
    rename,
    sha256,
    sync,
    write_synced,
)
from starling.state_io import Segment

_FOLDER = "segments"
_PARTIAL = ".unfinished"
_OWN = re.compile(r"[0-9a-f]{64}\.bin|\.unfinished")
"""Names of the files that this module writes; it never removes others."""


class Stored(Segment):
    """A valid segment on disk."""

    def __init__(self, root: Path, name: str, size: int) -> None:
        super().__init__(size, name)
        self._file = _file(root, name)

    def read(self) -> bytes:
        try:
            return read_bounded(self._file, self.size)
        except OSError as error:
            raise UserError(f"{self._file} cannot be read any more: {error.strerror}") from None


def write_segments(root: Path, segments: deque[Segment]) -> None:
    """Write all `segments` to disk and set their names; those that exist already are not read or written again.

    Each is released, and removed from `segments`, as soon as it is on disk.
    """
    folder = root / _FOLDER
    if segments:
        make_folder(folder)
    written: set[str] = set()
    while segments:
        segment = segments[0]
        if segment.name is None or not _is_there(root, segment.name, segment.size):
            segment.name = _write(root, segment.read(), written)
        segments.popleft().release()
    if folder.exists():  # also for files of an earlier save that failed before this line
        sync(folder)


def _write(root: Path, content: bytes, written: set[str]) -> str:
    """Write a segment once per save; an existing file of the same name may be damaged and is replaced."""
    name = hashlib.sha256(content).hexdigest()
    if name not in written:
        partial = root / _FOLDER / _PARTIAL
        write_synced(partial, content)
        rename(partial, _file(root, name))
        written.add(name)
    return name


def _is_there(root: Path, name: str, size: int) -> bool:
    return _size(_file(root, name)) == size


def _size(file: Path) -> int | None:
    """Return the size of a file in bytes; None if it does not exist or is a link."""
    try:
        return file.lstat().st_size if file.is_file() and not file.is_symlink() else None
    except OSError:
        return None


def what_is_wrong(root: Path, name: str, size: int) -> str | None:
    """Return the problem with a segment's file, or None if size and checksum are correct."""
    file = _file(root, name)
    shown = f"{_FOLDER}/{file.name}"
    if (found := _size(file)) is None:
        return f"{shown} is missing"
    if found != size:
        return f"{shown} has {found} bytes, not {size}"
    return None if sha256(file) == name else f"{shown} was altered (its checksum differs)"


def sweep(root: Path, named: Collection[str]) -> None:
    """Remove segments that are not in `named`, and partial files; other files are kept."""
    folder = root / _FOLDER
    if not is_folder(folder):
        return
    for name in os.listdir(folder):
        if _OWN.fullmatch(name) and name.removesuffix(".bin") not in named:
            remove(folder / name)


def _file(root: Path, name: str) -> Path:
    return root / _FOLDER / f"{name}.bin"
