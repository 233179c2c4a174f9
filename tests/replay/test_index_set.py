import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from scipy.stats import chisquare

from starling.replay.index_set import IndexSet

INDICES = st.lists(st.integers(0, 19), max_size=30).map(lambda xs: np.array(xs, np.int64))


class IndexSetMachine(RuleBasedStateMachine):
    """Compared with Python's set; a twin restored from the state must draw the same."""

    def __init__(self):
        super().__init__()
        self.set, self.model = IndexSet(20), set()

    @rule(indices=INDICES)
    def add(self, indices):
        self.set.add(indices)
        self.model |= set(indices.tolist())

    @rule(indices=INDICES)
    def discard(self, indices):
        self.set.discard(indices)
        self.model -= set(indices.tolist())

    @rule(seed=st.integers(0, 100))
    def save_load_and_draw(self, seed):
        twin = IndexSet(20)
        twin.add(np.arange(7))
        twin.set_state(self.set.get_state())
        if self.model:
            drawn = [s.draw(50, np.random.default_rng(seed)) for s in (self.set, twin)]
            assert np.array_equal(*drawn)
            assert set(drawn[0].tolist()) <= self.model
        self.set = twin

    @invariant()
    def equals_the_set(self):
        self.set.check_valid()
        assert len(self.set) == len(self.model)
        assert set(self.set.get_state()["members"].tolist()) == self.model


TestIndexSet = IndexSetMachine.TestCase
TestIndexSet.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


def test_draws_are_uniform():
    live = IndexSet(1000)
    live.add(np.arange(0, 1000, 3))
    live.discard(np.arange(0, 1000, 9))
    counts = np.bincount(live.draw(100_000, np.random.default_rng(1)), minlength=1000)
    member = np.array([i % 3 == 0 and i % 9 != 0 for i in range(1000)])
    assert not counts[~member].any()
    assert chisquare(counts[member]).pvalue > 0.01
