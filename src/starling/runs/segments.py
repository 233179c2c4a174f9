"""Segments on disk: a file each, named by the SHA-256 of its content, shared by all checkpoints that name it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path

from starling.errors import UserError
from starling.runs.disk import sha256, sync, write_synced
from starling.segments import Segment

_FOLDER = "segments"
_DRAFT = ".unfinished"


class Stored(Segment):
    """A segment that is on disk and sound."""

    def __init__(self, root: Path, name: str, size: int) -> None:
        super().__init__(size, name)
        self._file = _file(root, name)

    def read(self) -> bytes:
        try:
            return self._file.read_bytes()
        except OSError as error:
            raise UserError(f"{self._file} cannot be read any more: {error.strerror}") from None


def write_segments(root: Path, segments: Iterable[Segment]) -> None:
    """Have all `segments` on disk, under a name each; only those that are not there yet are read and written."""
    folder, left = root / _FOLDER, deque(segments)
    written: set[str] = set()
    try:
        while left:
            segment = left[0]
            if segment.name is None or not _is_there(root, segment.name, segment.size):
                folder.mkdir(exist_ok=True)
                segment.name = _write(root, segment.read(), written)
            left.popleft().release()
    finally:
        for segment in left:  # nobody will read what could not be written
            segment.release()
    if written:
        sync(folder)


def _write(root: Path, content: bytes, written: set[str]) -> str:
    """Write what this save has not written yet; a file that is there from before may be damaged and is replaced."""
    name = hashlib.sha256(content).hexdigest()
    if name not in written:
        draft = root / _FOLDER / _DRAFT
        write_synced(draft, content)
        draft.replace(_file(root, name))
        written.add(name)
    return name


def _is_there(root: Path, name: str, size: int) -> bool:
    file = _file(root, name)
    return file.is_file() and file.stat().st_size == size


def what_is_wrong(root: Path, name: str, size: int) -> str | None:
    """One phrase that names the file, unless every byte is as it was written."""
    file = _file(root, name)
    shown = f"{_FOLDER}/{file.name}"
    if not file.is_file():
        return f"{shown} is missing"
    if (found := file.stat().st_size) != size:
        return f"{shown} has {found} bytes, not {size}"
    return None if sha256(file) == name else f"{shown} was altered (its checksum differs)"


def sweep(root: Path, named: Collection[str]) -> None:
    """Remove the segments that no checkpoint names."""
    for file in (root / _FOLDER).glob("*"):
        if file.name.removesuffix(".bin") not in named:
            file.unlink()


def _file(root: Path, name: str) -> Path:
    return root / _FOLDER / f"{name}.bin"
