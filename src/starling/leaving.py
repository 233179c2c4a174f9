"""How this process ends where a library cannot be taken down in order any more."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_at_once = False


def leave_at_once() -> None:
    """From now on the end of `in_order` is the end of the process: nothing is torn down after it."""
    global _at_once
    _at_once = True


@contextmanager
def in_order() -> Iterator[None]:
    """Run what a command does; its exit code is that of the process, whichever way it ends."""
    try:
        yield
    except SystemExit as end:
        if not _at_once:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
