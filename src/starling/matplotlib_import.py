"""Imports matplotlib without the `matplotlibrc` of the current folder, which may be an untrusted run."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path


def import_matplotlib() -> None:
    """Import matplotlib; its settings are the user's own, which it looks for only after the current folder's.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if sys.modules.get("matplotlib"):
        return
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        os.chdir(Path(__file__).parent)
        importlib.import_module("matplotlib")
    finally:
        os.fchdir(here)
        os.close(here)
