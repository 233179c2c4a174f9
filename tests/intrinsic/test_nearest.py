"""The nearest-neighbor search compared with sorting all distances."""

import numpy as np
import pytest

from starling.intrinsic.nearest import nearest


@pytest.mark.parametrize("kinds", [2, 2000])  # many distances are equal, or none
def test_nearest_distances_match_sorting(kinds):
    rng, counts = np.random.default_rng(0), np.array([0, 3, 4, 5, 500])
    entries = rng.integers(0, kinds, (5, 500, 7)).astype(np.float16)
    query = rng.integers(0, kinds, (5, 7)).astype(np.float32)
    found = np.empty((5, 4), np.float32)
    nearest(query, entries, counts, found)
    for row, count in enumerate(counts):
        distances = np.sort(((entries[row, :count].astype(np.float64) - query[row]) ** 2).sum(1))
        expected = np.concatenate([distances, np.full(4, np.inf)])[:4]
        np.testing.assert_allclose(found[row], expected, rtol=1e-6)
