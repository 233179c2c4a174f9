"""Means of numbers and tensors, read eagerly or lazily."""

import numpy as np
import pytest
import torch

from starling.learner.means import Means


@pytest.fixture(params=[False, True])
def means(request):
    return Means(defer_reads=request.param)


def test_means_are_over_values_since_the_last_read(means):
    for value in (1.0, 2.0, 6.0):
        means.add("number", value)
        means.add("tensor", torch.tensor(value, requires_grad=True) * 2.0)
    assert "number" in means
    assert "other" not in means
    assert means.drain() == {"number": 3.0, "tensor": 6.0}
    assert "number" not in means
    assert means.drain() == {}


def test_means_continue_from_a_restored_state(means):
    means.add("a", torch.tensor(0.1))
    means.add("b", 5.0)
    state = means.get_state()
    other = Means(defer_reads=False)
    other.set_state(state)
    other.add("b", 7.0)
    assert other.drain() == {"a": float(np.float32(0.1)), "b": 6.0}
    assert means.drain() == {"a": float(np.float32(0.1)), "b": 5.0}
