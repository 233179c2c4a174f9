"""Helper processes of benchmarks, which read commands and write answers line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen


@contextmanager
def helper(command: list[str]) -> Iterator[Popen[str]]:
    """Start a process with pipes, and kill it on exit."""
    with Popen(command, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def last_words(process: Popen[str]) -> str:
    """Return the last line of stderr of a process that ended unexpectedly."""
    assert process.stderr is not None
    return (process.stderr.read().strip().splitlines() or ["no reason was given"])[-1]
