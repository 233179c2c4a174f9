"""Starts the server that workers are forked from. No torch here: the server loads it while this process does."""

from __future__ import annotations

import signal
import sys
from multiprocessing import current_process, forkserver, resource_tracker
from multiprocessing.util import get_temp_dir

from starling.errors import UserError
from starling.process_exit import ENDING
from starling.runtime.current_folder import kept_off_path
from starling.runtime.leftovers import end_server_later, remove_folder_later
from starling.runtime.open_files import raise_limit

PRELOADED = ["torch", "numpy", "gymnasium", "starling.launch.workers"]


def prewarm() -> None:
    """Start the fork server, unless it runs; it loads what workers need in the background."""
    _check_not_importing()
    raise_limit()
    forkserver.set_forkserver_preload(PRELOADED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with kept_off_path():
            resource_tracker.ensure_running()  # it blocks the others itself, and lets them through again
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            forkserver.ensure_running()  # its children keep the mask: signals are this process's business
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    remove_folder_later(get_temp_dir())  # with the socket of the fork server
    if (server := forkserver._forkserver._forkserver_pid) is not None:  # type: ignore[attr-defined]  # private in 3.11
        end_server_later(server)


def _check_not_importing() -> None:
    """Refuse to start workers from within a worker that is only importing the user's script."""
    if getattr(current_process(), "_inheriting", False):
        raise UserError(f"worker processes import {sys.argv[0]} too: put what it runs under if __name__ == '__main__':")
