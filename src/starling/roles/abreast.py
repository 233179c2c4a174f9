"""Several functions at the same time, each in a thread of its own; torch lets go of Python's lock while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Abreast:
    """At most `threads` functions at once, the first of them in the thread that calls."""

    def __init__(self, threads: int) -> None:
        self._others = ThreadPoolExecutor(threads - 1, "abreast", _flush_denormals) if threads > 1 else None

    def __call__(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Their results, once all have ended; the first exception, if there was one."""
        if self._others is None:
            return [function() for function in functions]
        first, *rest = functions
        started = [self._others.submit(function) for function in rest]
        try:
            mine = first()
        finally:
            wait(started)
        return [mine, *(future.result() for future in started)]


def _flush_denormals() -> None:
    """As in the process's first thread; the number of torch's threads is the same in all, but this is not."""
    torch.set_flush_denormal(True)
