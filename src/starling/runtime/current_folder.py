"""Keeps Python from importing from the current folder, which may be an untrusted run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"
_NUMBA = ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES")
"""Set, since Numba would else read them from `.numba_config.yaml` in the current folder, and unpickles its cache."""


def is_on_path() -> bool:
    """Return True if this process imports from the current folder: `python -m starling`, or `PYTHONPATH=.`."""
    here = os.path.realpath(".")
    return any(os.path.realpath(entry or ".") == here for entry in sys.path)


_lock = threading.Lock()
_users = 0  # contexts that are open, in any thread
_before: dict[str, str | None] = {}  # the variables as they were before the first of them


@contextmanager
def kept_off_path() -> Iterator[None]:
    """Keep the current folder off the path of interpreters that are started meanwhile, unless it is on this one's.

    `python -c` and `python -m` put it first on their path, before the standard library. The fork server, its resource
    tracker, and helpers of torch and Ray are started so. Threads may use this at the same time.
    """
    _enter()
    try:
        yield
    finally:
        _exit()


def _enter() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1 and not is_on_path():
            ours = {SAFE_PATH: "1"} | {name: os.environ.get(name, "") for name in _NUMBA}
            _before.update({name: os.environ.get(name) for name in ours})
            os.environ.update(ours)


def _exit() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        for name, value in _before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _before.clear()
