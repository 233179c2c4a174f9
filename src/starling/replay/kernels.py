"""Loops of the replay that numba compiles; imported only when one of them is needed, since loading numba takes long."""

from __future__ import annotations

from numba import njit

from starling.types import NDArray


@njit(cache=True)
def locate(
    begin: NDArray,  # [B] cells of the first observations
    steps: NDArray,  # [B] number of valid steps
    may_slide: NDArray,  # [B] bool: nothing is read past the final observation
    ages: NDArray,  # [cells] steps since a full stack was stored, at most n-1
    length: int,  # cells per ring
    n: int,  # frames per stack
    out_cells: NDArray,  # [B, T+n]
    out_from_full: NDArray,  # [2, B * (n-1)]
    out_irregular: NDArray,  # [B] bool
) -> int:
    """Find the frames of B sequences, oldest first: n frames of the first stack, then one per step.

    Fills the arguments `out_...`: `out_cells` with the cell of every frame; `out_from_full` with (frame, sequence) of
    frames that are older than the last full stack and must be taken from it; `out_irregular` with the sequences of
    which the loss reads a stack that is not its predecessor shifted by one frame. Returns the size of `out_from_full`.
    """
    found = 0
    for b in range(len(begin)):
        ring = begin[b] // length * length
        first, last = begin[b] - ring, steps[b]
        known = max(ages[begin[b]], 0)  # below 0 would overflow `out_from_full`
        for frame in range(out_cells.shape[1]):
            step = frame - (n - 1)
            if step < -known:
                out_from_full[0, found], out_from_full[1, found] = frame, b
                found += 1
                step = -known
            out_cells[b, frame] = ring + (first + min(step, last)) % length
        out_irregular[b] = False
        for step in range(1, out_cells.shape[1] - (n - 1)):
            if step > last:
                out_irregular[b] |= not may_slide[b]
                break
            now = ages[ring + (first + step) % length]
            out_irregular[b] |= now != min(known + 1, n - 1)
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
