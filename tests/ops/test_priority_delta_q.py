"""delta-Q (R2D2) compared with its definition."""

import numpy as np
import pytest
import torch

from starling.ops.priority import SMALLEST_Q, delta_q


def test_delta_q_is_the_distance_over_the_largest_q_of_the_sequence():
    rng = np.random.default_rng(0)
    points, length, rows, actions = 2, 5, 3, 4
    q, recorded = (torch.from_numpy(rng.normal(size=(points, rows, actions))) for _ in range(2))
    q_t = torch.from_numpy(rng.normal(size=(length, rows, actions)))
    valid = torch.tensor([[True] * 3, [True] * 3, [True, True, False], [True, False, False], [False] * 3])
    q_t[~valid] = 1e6  # must be ignored
    found = delta_q(q, recorded, q_t, valid)
    for n, b in np.ndindex(points, rows):
        distance = sum((q[n, b, a] - recorded[n, b, a]).item() ** 2 for a in range(actions)) ** 0.5
        largest = max(q_t[t, b, a].item() for t in range(length) if valid[t, b] for a in range(actions))
        assert found[n, b].item() == pytest.approx(distance / abs(largest))


def test_delta_q_is_finite_and_detached_where_q_is_0():
    q = torch.zeros(1, 1, 2, requires_grad=True)
    found = delta_q(q, torch.ones(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, dtype=torch.bool))
    assert found.item() == pytest.approx(2**0.5 / SMALLEST_Q)
    assert not found.requires_grad
    with pytest.raises(ValueError, match=r"delta_q: q_recorded has shape \(1, 2\)"):
        delta_q(q, torch.ones(1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1, dtype=torch.bool))
