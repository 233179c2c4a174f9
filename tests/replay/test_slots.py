import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.store_streams import Stream, assert_same, column, make_envs, make_layout

from starling.replay.slots import Slots
from starling.replay.spec import TableSpec

LAYOUT = make_layout()


def slots_spec(capacity, length=3):
    return TableSpec("queue", "slots", length=length, fragment=length, batch=2, capacity=capacity)


class SlotsMachine(RuleBasedStateMachine):
    """Whole fragments compared with a dict, oldest first."""

    @initialize(seed=st.integers(0, 2**31), capacity=st.integers(2, 9))
    def begin(self, seed, capacity):
        self.make = lambda: Slots(slots_spec(capacity), LAYOUT)
        self.slots, self.capacity = self.make(), capacity
        self.stream = Stream(make_envs(seed, 2, LAYOUT), np.arange(2), LAYOUT)
        self.live = {}  # slot -> (generation, item), oldest first
        self.gone = set()  # (slot, generation) of released or evicted items

    @rule()
    def append(self):
        fragment = self.stream.fragment(3)
        items = [column(fragment.trajectory, b) for b in range(2)]
        items = [{**item, "obs": {"vector": item["obs"]["vector"].copy()}} for item in items]
        excess = max(0, len(self.live) + 2 - self.capacity)
        oldest = list(self.live)[:excess]
        change = self.slots.append(fragment, continues=True)
        fragment.trajectory.obs["vector"][...] = 0  # the slots must have made a copy
        assert sorted(change.removed.tolist()) == sorted(oldest)
        self.gone |= {(slot, self.live.pop(slot)[0]) for slot in oldest}
        for slot, generation, item in zip(change.added, self.slots.generation(change.added), items, strict=True):
            assert int(slot) not in self.live
            self.live[int(slot)] = (int(generation), item)

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def release(self, data):
        gone = data.draw(st.lists(st.sampled_from(sorted(self.live)), unique=True, min_size=1))
        keys = np.array([(slot, self.live.pop(slot)[0]) for slot in gone])
        self.slots.release(keys[:, 0])
        self.gone |= set(map(tuple, keys.tolist()))

    @rule()
    def save_and_load(self):
        state = self.slots.get_state()
        self.slots = self.make()
        self.slots.set_state(state)
        assert_same(state, self.slots.get_state())

    @invariant()
    def equals_the_dict(self):
        if not getattr(self, "live", None):
            return
        self.slots.check_valid()
        at = np.array(list(self.live))
        generations = np.array([generation for generation, _ in self.live.values()])
        assert self.slots.alive(at, generations).all()
        gone = np.array(sorted(self.gone), np.int64).reshape(-1, 2)
        assert not self.slots.alive(gone[:, 0], gone[:, 1]).any()
        got = self.slots.gather(at)
        for b, (_, item) in enumerate(self.live.values()):
            assert_same(item, column(got, b))


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=20, deadline=None, derandomize=True)


@pytest.mark.parametrize(("length", "capacity"), [(2, 5), (3, 1)])
def test_fragment_that_does_not_fit_is_rejected(length, capacity):
    fragment = Stream(make_envs(0, 2, LAYOUT), np.arange(2), LAYOUT).fragment(length)
    with pytest.raises(ValueError, match="does not fit"):
        Slots(slots_spec(capacity), LAYOUT).append(fragment, continues=True)
