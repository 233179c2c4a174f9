"""The loop behind `Stacked.gather`: in which cells the frames of windows lie."""

from __future__ import annotations

from numba import njit

from starling.types import NDArray


@njit(cache=True)
def locate(
    begin: NDArray,  # [B] the cells of the windows' first observations
    steps: NDArray,  # [B] valid ones
    unread: NDArray,  # [B] bool: nobody looks at what follows the final observation
    since: NDArray,  # [cells] steps since a whole stack was kept, at most n-1
    length: int,  # cells a ring
    n: int,  # frames a stack
    cells: NDArray,  # [B, T+n] to be filled
    early: NDArray,  # [2, B * (n-1)] to be filled
    apart: NDArray,  # [B] bool, to be filled
) -> int:
    """The cells of every frame of windows that slide, oldest first: those of the first stack and one a step.

    Frames older than the last whole stack stand in that stack: which they are goes to `early`, as (frame, window), and
    how many is given. A window is `apart` where a stack that somebody looks at does not slide.
    """
    found = 0
    for b in range(len(begin)):
        ring = begin[b] // length * length
        first, known, last = begin[b] - ring, max(since[begin[b]], 0), steps[b]  # `early` has no room for others
        for frame in range(cells.shape[1]):
            step = frame - (n - 1)
            if step < -known:
                early[0, found], early[1, found] = frame, b
                found += 1
                step = -known
            cells[b, frame] = ring + (first + min(step, last)) % length
        apart[b] = False
        for step in range(1, cells.shape[1] - (n - 1)):
            if step > last:
                apart[b] |= not unread[b]
                break
            now = since[ring + (first + step) % length]
            apart[b] |= now != min(known + 1, n - 1)
            known = now
    return found
