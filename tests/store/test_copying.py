"""Two threads copy what one would."""

import numpy as np
import pytest

from starling.store.copying import WORTH_A_THREAD, take


@pytest.mark.parametrize("shape", [(3,), (2, 5), (0,), (7, 300), (7, 30, 10)])
@pytest.mark.parametrize("size", [1, WORTH_A_THREAD // 16])
def test_same_as_numpy(shape, size):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (20, 2, size), dtype=np.uint8) if np.prod(shape) < 100 else rng.random((20, 2000))
    index = rng.integers(0, 20, shape)
    taken = take(values, index)
    assert taken.dtype == values.dtype
    assert np.array_equal(taken, values[index])
