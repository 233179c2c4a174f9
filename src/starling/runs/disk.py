"""All changes that a run makes to files it must not lose, so that their order can be tested; and checksums.

Only this module calls the system: tests put a recorder, a full disk, or a kill in the place of its `os`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MODE = 0o666
"""Of new files, less what the user's umask takes away."""


def sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_synced(file: Path, *content: bytes | memoryview) -> None:
    """Write a new file, or overwrite one; its content is on the disk when this returns."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
    try:
        for part in content:
            _write_all(descriptor, part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(file: Path, content: bytes) -> None:
    """Append all of `content`, or nothing: what a full disk cuts off is taken back."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, MODE)
    try:
        end = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, content)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder in one that exists; its entry there is on the disk when this returns."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not exist_ok:
            raise
    sync(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Give a file or a folder another name, at once; a file of that name is replaced."""
    os.replace(source, target)


def publish(file: Path, content: bytes) -> None:
    """Replace a file at once: at any moment it has its old or its new content; the new when this returns."""
    draft = file.with_name(f".unfinished-{file.name}")
    try:
        write_synced(draft, content)
        rename(draft, file)
    except OSError:
        with suppress(OSError):
            remove(draft)
        raise
    sync(file.parent)


def remove(file: Path) -> None:
    os.unlink(file)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it."""
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


class GrowingFile:
    """A file that rows are appended to. Those that the disk refuses wait in memory until it takes them again."""

    def __init__(self, file: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        self.file, self._warn = file, warn
        self._waiting = b""
        self.failure: str | None = None  # why rows wait

    def append(self, row: bytes) -> None:
        """Append a row and those that wait; warns when the first of them has to wait, and when all are written."""
        self._waiting += row
        self.flush()

    def flush(self) -> None:
        """Write what waits, if the disk takes it now."""
        if not self._waiting:
            return
        try:
            append(self.file, self._waiting)
        except OSError as error:
            known, self.failure = self.failure, f"cannot write to {self.file}: {error.strerror}"
            if known is None:
                self._warn(f"warning: {self.failure}; training goes on, and what is to be written waits in memory")
            return
        self._waiting = b""
        if self.failure is not None:
            self.failure = None
            self._warn(f"{self.file} is written again, and nothing of it is missing")

    def sync(self) -> None:
        """Force what is written to the disk."""
        with suppress(FileNotFoundError):  # somebody has removed it; the next row makes it again
            sync(self.file)
