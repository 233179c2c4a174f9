"""Copying with several threads gives the same result as with one."""

import threading

import numpy as np
import pytest

from starling.replay.codec import make_cells
from starling.replay.copying import SHORT, WORTH_A_THREAD, in_threads, set_loaders, take
from starling.replay.grid import Grid
from starling.types import ArraySpec


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", [(3,), (2, 5), (0,), (7, 300), (SHORT + 1, 100), (7, 30, 10), (7, 1)])
@pytest.mark.parametrize("size", [1, WORTH_A_THREAD // 8])
def test_take_matches_numpy(shape, size, cores, monkeypatch):
    monkeypatch.setenv("STARLING_CORES", str(cores))
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (20, 2, size), dtype=np.uint8) if np.prod(shape) < 100 else rng.random((20, 2000))
    index = rng.integers(0, 20, shape)
    taken = take(values, index)
    assert taken.dtype == values.dtype
    assert np.array_equal(taken, values[index])


@pytest.fixture(params=[1, 2, 5])
def loaders(request):
    set_loaders(request.param)
    yield request.param
    set_loaders(None)


@pytest.mark.parametrize("n", [0, 1, 3, 100])
def test_work_is_divided_among_loaders(n, loaders):
    threads, done = set(), np.zeros(n, int)

    def work(begin, end):
        threads.add(threading.current_thread().name)
        done[begin:end] += 1

    in_threads(work, n)
    assert (done == 1).all()
    assert len(threads) <= loaders


def test_compressed_steps_are_the_same_for_any_number_of_loaders(loaders):
    grid = Grid(2, 400)
    frame = ArraySpec((84, 84), np.dtype(np.uint8))
    cells, plain = (make_cells(codec, frame, grid) for codec in ("zstd", "none"))
    values = np.random.default_rng(0).integers(0, 9, (400, 2, 84, 84), dtype=np.uint8)
    where = grid.at(np.arange(2), np.arange(400)[:, None])
    for column in (cells, plain):
        column.write(where, values)
    some = np.random.default_rng(1).integers(0, grid.num_cells, (3, 250))
    assert np.array_equal(cells.read(some), plain.read(some))


def test_error_of_a_loader_is_raised(loaders):
    def fail(begin, end):
        if end == 10:
            raise ValueError("broken chunk")

    with pytest.raises(ValueError, match="broken chunk"):
        in_threads(fail, 10)


def test_steps_of_a_short_sequence_are_contiguous():
    """This makes copying fast, and the first stack of a sequence is contiguous, too."""
    index = np.arange(7)[:, None] + np.arange(300)
    taken = take(np.zeros((400, 2000)), index)
    assert taken.shape == (7, 300, 2000)
    assert taken[:, 5].flags.c_contiguous
