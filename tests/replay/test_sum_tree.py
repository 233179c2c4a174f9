import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy.stats import chisquare

from starling.replay.sum_tree import SumTree

LEAVES = st.one_of(st.just(0.0), st.floats(0, 1e12), st.sampled_from([1e-300, 5e-324, 0.1, 1.0]))


class SumTreeMachine(RuleBasedStateMachine):
    """Compared with a plain array of leaves."""

    @initialize(capacity=st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 513, 1000]))
    def begin(self, capacity):
        self.tree, self.leaves = SumTree(capacity), np.zeros(capacity)

    @rule(data=st.data(), n=st.integers(0, 20))
    def set_some(self, data, n):
        indices_in_range = st.integers(0, len(self.leaves) - 1)
        indices = data.draw(st.lists(indices_in_range, min_size=n, max_size=n))
        values = data.draw(st.lists(LEAVES, min_size=n, max_size=n))
        self.tree.set(np.array(indices, np.int64), np.array(values))
        for index, value in zip(indices, values, strict=True):
            self.leaves[index] = value

    @precondition(lambda self: hasattr(self, "tree") and self.leaves.any())
    @rule(fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
    def sample_some(self, fractions):
        edge = [0.0, np.nextafter(1.0, 0.0)]
        drawn = self.tree.sample(np.array(fractions + edge))
        assert (self.leaves[drawn] > 0).all()
        live = np.nonzero(self.leaves)[0]
        assert drawn[-2] == live[0]
        total = self.leaves.sum()
        cumulative = np.cumsum(self.leaves)
        below = cumulative[drawn] - self.leaves[drawn]
        target = np.array(fractions + edge) * total
        assert (below <= target + 1e-9 * total).all()
        assert (cumulative[drawn] >= target - 1e-9 * total).all()

    @rule()
    def save_and_load(self):
        restored = SumTree(len(self.leaves))
        restored.set_state(self.tree.get_state())
        assert restored.total == self.tree.total  # bitwise, whatever the history
        self.tree = restored

    @invariant()
    def equals_the_array(self):
        if hasattr(self, "tree"):
            self.tree.check_valid()
            np.testing.assert_array_equal(self.tree.get(np.arange(len(self.leaves))), self.leaves)
            np.testing.assert_allclose(self.tree.total, self.leaves.sum(), rtol=1e-12)


TestSumTree = SumTreeMachine.TestCase
TestSumTree.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(1, 3000))
def test_zero_leaves_are_never_sampled_even_at_the_right_edge(seed, live):
    rng = np.random.default_rng(seed)
    tree = SumTree(4096)
    at = rng.permutation(4096)[:live]
    tree.set(at, rng.random(live) ** 20 + 1e-300)
    fractions = np.concatenate([np.full(4, np.nextafter(1.0, 0.0)), rng.random(1000)])
    assert (tree.get(tree.sample(fractions)) > 0).all()


def test_samples_are_in_proportion_to_the_leaves():
    rng = np.random.default_rng(3)
    leaves = np.where(rng.random(100) < 0.3, 0.0, rng.random(100))
    tree = SumTree(100)
    tree.set(np.arange(100), leaves)
    counts = np.bincount(tree.sample(rng.random(200_000)), minlength=100)
    assert not counts[leaves == 0].any()
    live = leaves > 0
    assert chisquare(counts[live], leaves[live] / leaves.sum() * 200_000).pvalue > 0.01


def test_state_is_independent_of_the_order_of_updates():
    rng = np.random.default_rng(0)
    leaves = rng.random(5000)
    one, other = SumTree(5000), SumTree(5000)
    for _ in range(50):
        at = rng.integers(0, 5000, 256)
        one.set(at, rng.random(256))
    one.set(np.arange(5000), leaves)
    order = rng.permutation(5000)
    other.set(order, leaves[order])
    assert one.total == other.total
    fractions = rng.random(1000)
    assert np.array_equal(one.sample(fractions), other.sample(fractions))


@pytest.mark.parametrize(("index", "value"), [(-1, 1.0), (10, 1.0), (0, -1.0), (0, np.nan), (0, np.inf)])
def test_invalid_input_is_rejected_and_changes_nothing(index, value):
    tree = SumTree(10)
    tree.set(np.array([3]), np.array([2.0]))
    with pytest.raises(ValueError, match="a value is negative"):
        tree.set(np.array([4, index]), np.array([1.0, value]))
    assert tree.total == 2.0
    tree.check_valid()


def test_empty_tree_cannot_be_sampled():
    with pytest.raises(ValueError, match="empty"):
        SumTree(4).sample(np.array([0.5]))


def test_capacity_and_shapes_are_checked():
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)
    with pytest.raises(ValueError, match="one length"):
        SumTree(4).set(np.array([0, 1]), np.array([1.0]))
