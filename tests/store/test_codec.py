"""Compressed cells against an array, and what is said when a state was saved by another codec."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.errors import UserError
from starling.store.codec import CHUNK, Chunked, Plain, make_cells
from starling.store.grid import Grid
from starling.types import ArraySpec

SPEC = ArraySpec((2, 3), np.dtype(np.float32))


def write_both(cells, rng, grid, heads, rows, steps):
    """The next `steps` values of some rings, into all of `cells`."""
    where = grid.at(np.array(rows), np.array([heads[row] for row in rows]) + np.arange(steps)[:, None])
    values = rng.standard_normal((steps, len(rows), *SPEC.shape)).astype(np.float32)
    for each in cells:
        each.write(where, values)
    for row in rows:
        heads[row] += steps


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    length=st.integers(1, 3 * CHUNK + 3),
    writes=st.lists(
        st.tuples(st.sampled_from([[0], [1], [0, 1], [1, 0]]), st.integers(1, 12)), min_size=6, max_size=16
    ),
    saved=st.integers(1, 8),
)
def test_what_is_taken_is_what_was_written_also_after_coming_round(seed, length, writes, saved):
    grid, rng = Grid(2, length), np.random.default_rng(seed)
    plain, packed, heads = Plain(SPEC, grid), Chunked(SPEC, grid), [0, 0]
    for i, (rows, steps) in enumerate(writes):
        write_both([plain, packed], rng, grid, heads, rows, min(steps, length))
        if i == saved:
            state, packed = packed.get_state(length), Chunked(SPEC, grid)
            packed.set_state(state)
        written = np.concatenate([grid.at(row, np.arange(min(head, length))) for row, head in enumerate(heads)])
        order = rng.permutation(np.concatenate([written, written]))[None]
        assert np.array_equal(plain.take(order), packed.take(order))


def test_a_state_of_the_other_codec_is_named():
    grid = Grid(1, 20)
    with pytest.raises(UserError, match=r"algo\.codec=none"):
        Chunked(SPEC, grid).set_state(Plain(SPEC, grid).get_state(20))
    with pytest.raises(UserError, match=r"algo\.codec=zstd"):
        Plain(SPEC, grid).set_state(Chunked(SPEC, grid).get_state(20))


def test_a_taken_value_is_a_copy():
    grid = Grid(1, 4 * CHUNK)
    cells = Chunked(SPEC, grid)
    cells.write(np.arange(2 * CHUNK)[:, None], np.ones((2 * CHUNK, 1, *SPEC.shape), np.float32))
    for cell in (0, CHUNK):  # closed, open
        cells.take(np.array([cell]))[:] = 5
        assert (cells.take(np.array([cell])) == 1).all()


def test_small_values_are_not_compressed():
    grid = Grid(1, 20)
    assert isinstance(make_cells("zstd", SPEC, grid), Plain)
    assert isinstance(make_cells("zstd", ArraySpec((84, 84), np.dtype(np.uint8)), grid), Chunked)
    assert isinstance(make_cells("none", ArraySpec((84, 84), np.dtype(np.uint8)), grid), Plain)
