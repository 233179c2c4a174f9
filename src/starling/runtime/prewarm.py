"""Starts the server that workers are forked from. No torch here: the server loads it while this process does."""

from __future__ import annotations

import signal
import sys
from multiprocessing import current_process, forkserver, resource_tracker

from starling.errors import UserError
from starling.process_exit import ENDING
from starling.runtime.current_folder import kept_off_path

PRELOADED = ["torch", "numpy", "gymnasium", "starling.launch.workers"]


def prewarm() -> None:
    """Start the fork server, unless it runs; it loads what workers need in the background."""
    _check_not_importing()
    forkserver.set_forkserver_preload(PRELOADED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with kept_off_path():
            resource_tracker.ensure_running()  # it blocks the others itself, and lets them through again
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            forkserver.ensure_running()  # its children keep the mask: signals are this process's business
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_not_importing() -> None:
    """Refuse to start workers from within a worker that is only importing the user's script."""
    if getattr(current_process(), "_inheriting", False):
        raise UserError(f"worker processes import {sys.argv[0]} too: put what it runs under if __name__ == '__main__':")
