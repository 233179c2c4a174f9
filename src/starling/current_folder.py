"""Keep Python from importing what lies in the current folder, which may be a run of a stranger."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"
_NUMBA = ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES")
"""Settings that Numba would otherwise read from `.numba_config.yaml` in the current folder: its cache is unpickled."""


def is_on_path() -> bool:
    """Return True if this process imports from the current folder: `python -m starling`, or `PYTHONPATH=.`."""
    here = os.path.realpath(".")
    return any(os.path.realpath(entry or ".") == here for entry in sys.path)


@contextmanager
def kept_off_path() -> Iterator[None]:
    """Start interpreters meanwhile that do not import from the current folder, unless this one does.

    `python -c` and `python -m` put it first on their path, before the standard library. The fork server, its resource
    tracker, and helpers of torch and Ray are started so.
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
