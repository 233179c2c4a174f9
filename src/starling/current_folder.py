"""Keeps Python from importing from the current folder, which may be an untrusted run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"
_NUMBA = ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES")
"""Set, since Numba would else read them from `.numba_config.yaml` in the current folder, and unpickles its cache."""


def is_on_path() -> bool:
    """Return True if this process imports from the current folder: `python -m starling`, or `PYTHONPATH=.`."""
    here = os.path.realpath(".")
    return any(os.path.realpath(entry or ".") == here for entry in sys.path)


@contextmanager
def kept_off_path() -> Iterator[None]:
    """Make interpreters that are started in this context not import from the current folder, unless this one does.

    `python -c` and `python -m` put that folder first on their path, before the standard library. The fork server, its
    resource tracker, and helper processes of torch and Ray are started in this way.
    """
    ours = {} if is_on_path() else {SAFE_PATH: "1"} | {name: os.environ.get(name, "") for name in _NUMBA}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
