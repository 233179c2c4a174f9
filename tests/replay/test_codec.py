"""Compressed cells compared with a plain array, and errors for states that are damaged or of another codec."""

import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.errors import UserError
from starling.replay.codec import CHUNK, Chunked, Packer, Plain, joined, make_cells, parted
from starling.replay.grid import Grid
from starling.state_io import Joined, Segmented
from starling.types import ArraySpec

SPEC = ArraySpec((2, 3), np.dtype(np.float32))


def write_both(cells, rng, grid, ring_heads, rings, steps):
    """Write the next `steps` values of some rings into all of `cells`."""
    where = grid.at(np.array(rings), np.array([ring_heads[ring] for ring in rings]) + np.arange(steps)[:, None])
    values = rng.standard_normal((steps, len(rings), *SPEC.shape)).astype(np.float32)
    for each in cells:
        each.write(where, values)
    for ring in rings:
        ring_heads[ring] += steps


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    length=st.integers(1, 3 * CHUNK + 3),
    writes=st.lists(
        st.tuples(st.sampled_from([[0], [1], [0, 1], [1, 0]]), st.integers(1, 12)), min_size=6, max_size=16
    ),
    saved=st.integers(1, 8),
)
def test_compressed_cells_return_what_was_written_even_after_wrapping_around(seed, length, writes, saved):
    grid, rng = Grid(2, length), np.random.default_rng(seed)
    plain, packed, ring_heads = Plain(SPEC, grid), Chunked(SPEC, grid), [0, 0]
    for i, (rings, steps) in enumerate(writes):
        write_both([plain, packed], rng, grid, ring_heads, rings, min(steps, length))
        if i == saved:
            state, packed = packed.get_state(length), Chunked(SPEC, grid)
            packed.set_state(state)
        written = np.concatenate([grid.at(ring, np.arange(min(head, length))) for ring, head in enumerate(ring_heads)])
        order = rng.permutation(np.concatenate([written, written]))[None]
        assert np.array_equal(plain.read(order), packed.read(order))


def test_state_of_another_codec_is_a_clear_error():
    grid = Grid(1, 20)
    with pytest.raises(UserError, match=r"algo\.codec=none"):
        Chunked(SPEC, grid).set_state(Plain(SPEC, grid).get_state(20))
    with pytest.raises(UserError, match=r"algo\.codec=zstd"):
        Plain(SPEC, grid).set_state(Chunked(SPEC, grid).get_state(20))


def test_taken_values_are_copies():
    grid = Grid(1, 4 * CHUNK)
    cells = Chunked(SPEC, grid)
    cells.write(np.arange(2 * CHUNK)[:, None], np.ones((2 * CHUNK, 1, *SPEC.shape), np.float32))
    for cell in (0, CHUNK):  # in a closed chunk, in an open one
        cells.read(np.array([cell]))[:] = 5
        assert (cells.read(np.array([cell])) == 1).all()


def test_small_values_are_not_compressed():
    grid = Grid(1, 20)
    assert isinstance(make_cells("zstd", SPEC, grid), Plain)
    assert isinstance(make_cells("zstd", ArraySpec((84, 84), np.dtype(np.uint8)), grid), Chunked)
    assert isinstance(make_cells("none", ArraySpec((84, 84), np.dtype(np.uint8)), grid), Plain)


def test_chunk_that_unpacks_to_a_wrong_size_is_rejected_before_unpacking():
    packer, kind = Packer(), np.dtype(np.uint8)
    bomb = packer.pack(np.zeros(2**26, np.uint8))
    assert len(bomb) < 10_000
    tracemalloc.start()
    with pytest.raises(UserError, match="unpacks to 67108864 bytes, not 100"):
        packer.unpack(bomb, (100,), kind)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    stream = zstandard.ZstdCompressor().compressobj()  # a stream does not declare its size
    unknown = stream.compress(bytes(2**26)) + stream.flush()
    for broken in (unknown, b"", b"zstd", bomb[:-1], packer.pack(np.zeros(100, np.uint8))[:-1]):
        with pytest.raises(UserError, match="damaged"):
            packer.unpack(broken, (100,), kind)
    assert not packer.unpack(packer.pack(np.zeros(100, np.uint8)), (100,), kind).any()


@pytest.mark.parametrize("damage", ["bomb", "missing", "ring"])
def test_damaged_state_is_rejected_when_loaded(damage):
    grid = Grid(2, 4 * CHUNK)
    cells = Chunked(SPEC, grid)
    where = grid.at(np.arange(2), np.arange(2 * CHUNK)[:, None])
    cells.write(where, np.ones((2 * CHUNK, 2, *SPEC.shape), np.float32))
    state = cells.get_state(2 * CHUNK)
    Chunked(SPEC, grid).set_state(state)
    if damage == "bomb":
        bomb = Packer().pack(np.zeros(2**24, np.uint8))
        state |= {"closed": Segmented((Joined((bomb,)),)), "sizes": np.array([len(bomb)] + 7 * [0], np.int32)}
    elif damage == "missing":
        state["sizes"] = state["sizes"][:-1]
    else:
        state["which"] = state["which"][::-1].copy()
    with pytest.raises(UserError, match="damaged"):
        Chunked(SPEC, grid).set_state(state)


class Unread(Joined):
    """A segment that must not be read."""

    def read(self):
        raise AssertionError("read before it was checked")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {"group": 0},
        lambda state: {"group": -1},
        lambda state: {"group": "all"},
        lambda state: {"closed": Segmented(state["closed"].parts * 10_000)},
        lambda state: {"closed": Segmented(())},
        lambda state: {"closed": Segmented((Unread((bytes(10**6),)),))},
        lambda state: {"sizes": np.concatenate([state["sizes"], state["sizes"]])},
        lambda state: {"sizes": state["sizes"] * 1000},
        lambda state: {"sizes": -state["sizes"]},
        lambda state: {"sizes": state["sizes"].astype(np.float32)},
        lambda state: {"which": state["which"] + 10**6},
        lambda state: {"which": state["which"] - 10**6},
        lambda state: {"which": state["which"] * 0},
        lambda state: {"which": state["which"] + 0.5},
        lambda state: {"which": np.array(3)},
    ],
)
def test_state_with_impossible_chunks_is_rejected_before_reading_segments(change):
    grid = Grid(1, 4 * CHUNK)
    cells = Chunked(SPEC, grid)
    cells.write(np.arange(3 * CHUNK)[:, None], np.ones((3 * CHUNK, 1, *SPEC.shape), np.float32))
    state = cells.get_state(4 * CHUNK)
    Chunked(SPEC, grid).set_state(state)
    state["closed"] = Segmented(tuple(Unread((part.read(),)) for part in state["closed"].parts))
    with pytest.raises((UserError, ValueError)):
        Chunked(SPEC, grid).set_state({**state, **change(state)})


@pytest.mark.parametrize("sizes", [[1, 10**6, -(10**6)] * 300, [-1, 4], [1], [4], [[3]]])
def test_pieces_whose_sizes_do_not_match_their_bytes_are_rejected(sizes):
    with pytest.raises(UserError, match="damaged"):
        parted({"bytes": np.zeros(3, np.uint8), "sizes": np.array(sizes, np.int32)})
    assert parted(joined([b"ab", b"", b"c"])) == [b"ab", b"", b"c"]
