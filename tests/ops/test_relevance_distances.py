"""Distances compared with loops over states, and which differences each distance ignores."""

import numpy as np
import pytest
import torch

from starling.ops.relevance import cosine_distance, lp_distance, nearest_cosine, nearest_lp, sequence_mean


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slow_lp(x, y, p):
    return sum(abs(a - b) ** p for a, b in zip(x, y, strict=True)) ** (1 / p)


def slow_cosine(x, y):
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return 1 - dot / (sum(a * a for a in x) ** 0.5 * sum(b * b for b in y) ** 0.5)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_lp_distance_matches_the_formula(p):
    x, y = random(3, 4, 5), random(3, 4, 5, seed=1)
    want = [[slow_lp(x[t, b].tolist(), y[t, b].tolist(), p) for b in range(4)] for t in range(3)]
    np.testing.assert_allclose(lp_distance(x, y, p), want, rtol=1e-5)


def test_cosine_distance_is_one_minus_the_similarity():
    x, y = random(3, 4, 5), random(3, 4, 5, seed=1)
    want = [[slow_cosine(x[t, b].tolist(), y[t, b].tolist()) for b in range(4)] for t in range(3)]
    np.testing.assert_allclose(cosine_distance(x, y), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(cosine_distance(x, 3 * x), 0.0, atol=1e-6)
    np.testing.assert_allclose(cosine_distance(x, -x), 2.0, atol=1e-6)


def test_nearest_distance_is_the_minimum_over_all():
    x, others = random(3, 4, 5), random(6, 5, seed=1)
    pairs = [[[(x[t, b].tolist(), other.tolist()) for other in others] for b in range(4)] for t in range(3)]
    lp = [[min(slow_lp(*pair, 2.0) for pair in pairs[t][b]) for b in range(4)] for t in range(3)]
    cosine = [[min(slow_cosine(*pair) for pair in pairs[t][b]) for b in range(4)] for t in range(3)]
    np.testing.assert_allclose(nearest_lp(x, others, 2.0), lp, rtol=1e-4)
    np.testing.assert_allclose(nearest_cosine(x, others), cosine, rtol=1e-4, atol=1e-6)


def test_sequence_distance_is_the_mean_over_valid_states():
    distance = torch.tensor([[1.0, 9.0, 1e9], [3.0, 1e9, 1e9]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    assert sequence_mean(distance, valid).tolist() == [2.0, 9.0, float("inf")]
