"""Check the types of the files in a run folder before any of them is read, written, or removed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from starling.errors import UserError, printable

DEEPEST = 32
"""Largest depth of nested folders; a run has three."""
MOST_ENTRIES = 1_000_000

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_contents(folder: Path, what: str = "a run") -> None:
    """Raise `UserError` if a folder holds anything but regular files and folders, since a link may lead anywhere.

    `folder` itself may be a link, since the user has typed it.
    """
    waiting = [(str(folder), 0)]
    entries = 0
    while waiting:
        path, depth = waiting.pop()
        if depth > DEEPEST:
            raise UserError(f"{printable(folder)} has folders more than {DEEPEST} deep, which {what} never has")
        try:
            with os.scandir(path) as found:
                for entry in found:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        raise UserError(f"{printable(folder)} holds more than {MOST_ENTRIES:,} files")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
                    elif not entry.is_file(follow_symlinks=False):
                        _refuse(entry, what)
        except FileNotFoundError:  # a run in progress has pruned a checkpoint
            continue
        except OSError as error:
            raise UserError(f"cannot read {printable(path)}: {error.strerror}") from None


def _refuse(entry: os.DirEntry[str], what: str) -> None:
    """Raise a `UserError` that names the type of a file, unless the file is gone by now."""
    try:
        kind = _KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode), "of an unknown kind")
    except FileNotFoundError:
        return
    raise UserError(
        f"{printable(entry.path)} is {kind}, and {what} may hold only files and folders: remove it, or put a copy of"
        " the file in its place"
    )
