"""The number of files that this process may have open: pipes, sockets, and shared memory count, too."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from starling.errors import UserError

PER_WORKER = 8
"""Files that this process keeps open for one worker: its pipes, its shared memory, and what tells of its end."""
OTHERS = 64
MOST = 2**20
"""Largest limit to ask for; the system may allow no more, even where it names no limit."""


def raise_limit() -> None:
    """Raise this process's limit, which those that it starts inherit, to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def check_limit(workers: int) -> None:
    """Raise `UserError` if this process may not open the files that so many more workers need."""
    raise_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + OTHERS + PER_WORKER * workers
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise UserError(
            f"{workers:,} worker processes need about {needed:,} open files, and this process may have {allowed:,}:"
            f" raise the limit (ulimit -Hn {needed}), or lower actors"
        )
