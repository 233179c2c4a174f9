"""Starts the server that workers are forked from. No torch here: the server loads it while this process does."""

from __future__ import annotations

import sys
from multiprocessing import current_process, forkserver

from starling.errors import UserError

PRELOADED = ["torch", "numpy", "gymnasium", "starling.nodes"]


def prewarm() -> None:
    """Start the fork server, unless it runs; it loads what workers need in the background."""
    _check_not_importing()
    forkserver.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def _check_not_importing() -> None:
    """Refuse to start workers from within a worker that is only importing the user's script."""
    if getattr(current_process(), "_inheriting", False):
        raise UserError(f"worker processes import {sys.argv[0]} too: put what it runs under if __name__ == '__main__':")
