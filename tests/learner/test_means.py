"""Means of numbers."""

import pytest

from starling.learner.means import Means


@pytest.fixture
def means():
    return Means()


def test_means_are_over_values_since_the_last_read(means):
    for value in (1.0, 2.0, 6.0):
        means.add("number", value)
        means.add("double", 2.0 * value)
    assert "number" in means
    assert "other" not in means
    assert means.drain() == {"number": 3.0, "double": 6.0}
    assert "number" not in means
    assert means.drain() == {}


def test_means_continue_from_a_restored_state(means):
    means.add("a", 0.1)
    means.add("b", 5.0)
    state = means.get_state()
    other = Means()
    other.set_state(state)
    other.add("b", 7.0)
    assert other.drain() == {"a": 0.1, "b": 6.0}
    assert means.drain() == {"a": 0.1, "b": 5.0}
