"""Files that are on the disk when a call returns, and their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_synced(file: Path, content: bytes) -> None:
    with file.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
