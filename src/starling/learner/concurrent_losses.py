"""Several functions at the same time, each in a thread of its own; torch lets go of Python's lock while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from starling.types import Tensor

Result = TypeVar("Result")


class ConcurrentLosses:
    """At most `threads` functions at once, the first of them in the thread that calls.

    Parameters that several of them differentiate are `shared`. The first use of one makes torch's node for its
    gradient, for which a thread waits for Python's lock while it has the parameter's; one that has Python's and indexes
    the parameter would wait for the other indefinitely. While a view of it is kept, the node is there.
    """

    def __init__(self, threads: int, shared: Iterable[Tensor] = ()) -> None:
        self._kept = [parameter.view_as(parameter) for parameter in shared] if threads > 1 else []
        self._others = ThreadPoolExecutor(threads - 1, "concurrent_losses", _flush_denormals) if threads > 1 else None

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
