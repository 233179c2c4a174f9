"""Loops of the replay that numba compiles; imported only when one of them is needed, since loading numba takes long."""

from __future__ import annotations

from numba import njit

from starling.types import NDArray


@njit(cache=True)
def locate(
    begin: NDArray,  # [B] cells of the first observations
    steps: NDArray,  # [B] number of valid steps
    unread: NDArray,  # [B] bool: the loss does not read past the final observation
    since: NDArray,  # [cells] steps since a whole stack was stored, at most n-1
    length: int,  # cells per ring
    n: int,  # frames per stack
    cells: NDArray,  # [B, T+n] output
    early: NDArray,  # [2, B * (n-1)] output
    apart: NDArray,  # [B] bool, output
) -> int:
    """Write the cells of every frame of B sequences, oldest first: n frames of the first stack, then one per step.

    Frames older than the last whole stack must be taken from that stack; they are written to `early` as (frame,
    sequence), and their number is returned. A sequence is `apart` if a stack that the loss reads does not slide.
    """
    found = 0
    for b in range(len(begin)):
        ring = begin[b] // length * length
        first, known, last = begin[b] - ring, max(since[begin[b]], 0), steps[b]  # below 0 would overflow `early`
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


@njit(cache=True, nogil=True)
def copy_columns(source: NDArray, index: NDArray, into: NDArray, begin: int, end: int) -> None:
    """Compute `into[:, b] = source[index[:, b]]` for b in [begin, end); into [T, B, n], source [N, n], index [T, B]."""
    for b in range(begin, end):
        for t in range(index.shape[0]):
            value, place = source[index[t, b]], into[t, b]
            for i in range(len(value)):
                place[i] = value[i]
