"""Run several functions at the same time in threads; torch releases the GIL while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from starling.types import Tensor

Result = TypeVar("Result")


class ConcurrentLosses:
    """Runs at most `threads` functions at once, the first of them in the calling thread.

    `shared` are the parameters that several functions differentiate. The first use of a parameter creates torch's node
    that accumulates its gradient; a thread that does so holds the parameter's lock and waits for the GIL, so it would
    deadlock with a thread that holds the GIL and indexes the parameter. A view of each parameter keeps its node alive.
    """

    def __init__(self, threads: int, shared: Iterable[Tensor] = ()) -> None:
        self._kept = [parameter.view_as(parameter) for parameter in shared] if threads > 1 else []
        self._others = ThreadPoolExecutor(threads - 1, "concurrent_losses", _flush_denormals) if threads > 1 else None

    def __call__(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results once all functions have ended, or raise the first exception."""
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
    """Set the flag as in the main thread: unlike the number of torch's threads, it is set per thread."""
    torch.set_flush_denormal(True)
