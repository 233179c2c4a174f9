"""Starts the server that workers are forked from. No torch here: the server loads it while this process does."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import current_process, forkserver

from starling.errors import UserError

PRELOADED = ["torch", "numpy", "gymnasium", "starling.nodes"]


def prewarm() -> None:
    """Start the fork server, unless it runs; it loads what workers need in the background."""
    _check_not_importing()
    forkserver.set_forkserver_preload(PRELOADED)
    with _interrupts_ignored():
        forkserver.ensure_running()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """What is started meanwhile is not reached by Ctrl-C, which is the main process's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_not_importing() -> None:
    """Refuse to start workers from within a worker that is only importing the user's script."""
    if getattr(current_process(), "_inheriting", False):
        raise UserError(f"worker processes import {sys.argv[0]} too: put what it runs under if __name__ == '__main__':")
