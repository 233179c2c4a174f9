"""Durable file operations of a run, and checksums.

All changes to files that must not be lost go through this module: tests replace its `os` to check their order, or to
simulate a full disk or a kill.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

MODE = 0o666
"""Mode of new files, before the user's umask is applied."""


def sha256(file: Path) -> str:
    with open(open_regular(file, os.O_RDONLY), "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def open_regular(file: Path, flags: int, mode: int = MODE) -> int:
    """Open a regular file; raises OSError for a symbolic link and, without blocking, for a FIFO.

    A file to be written must have no second hard link, since the file would also change there.
    """
    descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
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
    """Read all bytes of a regular file; raises OSError if there are more than `most`."""
    with open(open_regular(file, os.O_RDONLY), "rb") as handle:
        is_small = os.fstat(handle.fileno()).st_size <= most
        content = handle.read(most + 1) if is_small else b""
    if not is_small or len(content) > most:  # the file may have grown
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(file))
    return content


def write_synced(file: Path, *content: bytes | memoryview) -> None:
    """Write a new file, replacing an existing one, and sync it to disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = open_regular(file, flags)
    except FileExistsError:
        os.unlink(file)  # removes a link, not its target
        descriptor = open_regular(file, flags)
    try:
        for part in content:
            _write_all(descriptor, part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(file: Path, content: bytes) -> None:
    """Append all of `content` or nothing: a partial write, as on a full disk, is truncated."""
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
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, exist_ok: bool = True) -> None:
    """Create a folder in an existing one, and sync its entry to disk."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not exist_ok:
            raise
        if not is_folder(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def is_folder(path: Path) -> bool:
    """Return True if the path is a folder, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder atomically; an existing target file is replaced."""
    os.replace(source, target)


def replace(file: Path, content: bytes) -> None:
    """Replace the content of a file atomically, but not durably: after a power failure it may be old or empty."""
    partial = file.with_name(f".unfinished-{file.name}")
    with suppress(FileNotFoundError):
        os.unlink(partial)
    append(partial, content)
    rename(partial, file)


def publish(file: Path, content: bytes | memoryview) -> None:
    """Replace the content of a file atomically, and sync it to disk."""
    partial = file.with_name(f".unfinished-{file.name}")
    try:
        write_synced(partial, content)
        rename(partial, file)
    except OSError:
        with suppress(OSError):
            remove(partial)
        raise
    sync(file.parent)


@contextmanager
def output(file: Path, mode: int = MODE) -> Iterator[TextIO]:
    """Open a text file that somebody may have put a link in place of: the name gets a new file once it is complete.

    Raises:
        OSError: It cannot be written, or is a folder, a device, or a FIFO.
    """
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    partial = file.with_name(f".unfinished-{file.name}")
    with suppress(FileNotFoundError):
        remove(partial)  # of a killed process
    try:
        descriptor = open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8", newline="") as stream:
            yield stream
        rename(partial, file)
    except BaseException:
        with suppress(OSError):
            remove(partial)
        raise


def remove(file: Path) -> None:
    os.unlink(file)


def remove_tree(folder: Path) -> None:
    """Remove a folder with its content; of a link, only the link itself."""
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
    """A file to which rows are appended; on write errors, rows are buffered in memory until writing works again."""

    def __init__(self, file: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        self.file, self._warn = file, warn
        self._waiting = b""
        self.failure: str | None = None  # reason why rows are buffered

    def append(self, row: bytes) -> None:
        """Append a row after the buffered ones; warns when buffering starts and when everything is written."""
        self._waiting += row
        self.flush()

    def flush(self) -> None:
        """Try to write the buffered rows."""
        if not self._waiting:
            return
        try:
            append(self.file, self._waiting)
        except OSError as error:
            known, self.failure = self.failure, f"cannot write to {self.file}: {error.strerror}"
            if known is None:
                self._warn(f"warning: {self.failure}; training goes on, and unwritten data waits in memory")
            return
        self._waiting = b""
        if self.failure is not None:
            self.failure = None
            self._warn(f"{self.file} can be written again, and nothing is missing")

    def sync(self) -> None:
        """Sync the written rows to disk."""
        with suppress(FileNotFoundError):  # if it was removed, the next row creates it again
            sync(self.file)
