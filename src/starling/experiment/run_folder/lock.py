"""Lock of a run folder: only one process at a time trains in it, and holds a lock on its `.lock` file."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from starling.errors import UserError, printable
from starling.experiment.run_folder.disk import open_regular, read_bounded

WAIT_SECONDS = 10.0
"""Seconds to wait for a lock, since the worker processes of a killed run may outlive it."""
_RETRY_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a run. The operating system releases it with this process, however it ends.

    Only the lock counts. The host and process id in the file are for the error message of another process.
    """
    file = folder / ".lock"
    try:
        descriptor = open_regular(file, os.O_RDWR | os.O_CREAT)  # close-on-exec: child programs do not inherit the lock
    except OSError as error:
        raise UserError(f"cannot write to {file}: {error.strerror}") from None
    try:
        if _acquire(descriptor, file, say):
            with suppress(OSError):  # the disk may be full
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return True if a process of this machine trains in the folder; False also if that cannot be found out."""
    try:
        descriptor = open_regular(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _acquire(descriptor: int, file: Path, say: Callable[[str], None]) -> bool:
    """Acquire the lock, and wait for it if necessary; returns False if the file system has no locks."""
    deadline, waits = time.monotonic() + WAIT_SECONDS, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise UserError(f"cannot lock {file}: {error.strerror}") from None
            say(f"warning: {file.parent} cannot be locked ({error.strerror}): make sure that no other process uses it")
            return False
        else:
            return True
        if time.monotonic() >= deadline:
            raise UserError(f"{_in_use(file)}; wait for its end, stop it, or add run=NAME to continue in a new folder")
        if not waits:
            say(f"{_in_use(file)}; waiting up to {WAIT_SECONDS:g} s for its end")
            waits = True
        time.sleep(_RETRY_SECONDS)


def _in_use(file: Path) -> str:
    try:
        process, host = read_bounded(file, 1024).decode().split()
        int(process)
    except (OSError, ValueError):
        return f"{file.parent} is in use by another process"
    return f"{file.parent} is in use by process {process} on host {printable(host)}"
