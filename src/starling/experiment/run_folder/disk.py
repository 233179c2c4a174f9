"""All changes that a run makes to files it must not lose, so that their order can be tested; and checksums.

Only this module calls the system: tests put a recorder, a full disk, or a kill in the place of its `os`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MODE = 0o666
"""Of new files, less what the user's umask takes away."""


def sha256(file: Path) -> str:
    with open(open_regular(file, os.O_RDONLY), "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def open_regular(file: Path, flags: int) -> int:
    """Open a regular file; raises OSError for a symbolic link and, without waiting for its other end, for a FIFO.

    A file to be written must also have no second name (hard link), under which it would change somewhere else.
    """
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, MODE)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = OSError(errno.EINVAL, "not a regular file", str(file))
    elif flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        problem = OSError(errno.EMLINK, "it has a second name (a hard link)", str(file))
    if problem is not None:
        os.close(descriptor)
        raise problem
    return descriptor


def read_bounded(file: Path, most: int) -> bytes:
    """All bytes of a regular file; raises OSError if there are more than `most`."""
    with open(open_regular(file, os.O_RDONLY), "rb") as handle:
        is_small = os.fstat(handle.fileno()).st_size <= most
        content = handle.read(most + 1) if is_small else b""
    if not is_small or len(content) > most:  # it may have grown
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(file))
    return content


def write_synced(file: Path, *content: bytes | memoryview) -> None:
    """Write a new file in the place of one that may be there; its content is on the disk when this returns."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = open_regular(file, flags)
    except FileExistsError:
        os.unlink(file)  # a link goes, not what it names
        descriptor = open_regular(file, flags)
    try:
        for part in content:
            _write_all(descriptor, part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(file: Path, content: bytes) -> None:
    """Append all of `content`, or nothing: what a full disk cuts off is taken back."""
    descriptor = open_regular(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
        if not is_folder(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def is_folder(path: Path) -> bool:
    """True if a folder, and no link to one, is there."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def rename(source: Path, target: Path) -> None:
    """Give a file or a folder another name, at once; a file of that name is replaced."""
    os.replace(source, target)


def publish(file: Path, content: bytes | memoryview) -> None:
    """Replace a file at once: at any moment it has its old or its new content; the new when this returns."""
    partial = file.with_name(f".unfinished-{file.name}")
    try:
        write_synced(partial, content)
        rename(partial, file)
    except OSError:
        with suppress(OSError):
            remove(partial)
        raise
    sync(file.parent)


def remove(file: Path) -> None:
    os.unlink(file)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it; of a link only the link."""
    if not is_folder(folder):
        os.unlink(folder)
        return
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
