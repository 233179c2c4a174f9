"""Copying with two threads gives the same result as with one."""

import numpy as np
import pytest

from starling.replay.copying import SHORT, WORTH_A_THREAD, take


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


def test_steps_of_a_short_sequence_are_contiguous():
    """This makes copying fast, and the first stack of a sequence is contiguous, too."""
    index = np.arange(7)[:, None] + np.arange(300)
    taken = take(np.zeros((400, 2000)), index)
    assert taken.shape == (7, 300, 2000)
    assert taken[:, 5].flags.c_contiguous
