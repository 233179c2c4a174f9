import dataclasses
import json

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scipy.stats import chisquare
from support.store_streams import Stream, assert_same, make_envs, make_layout, stack_of

from starling import tree
from starling.errors import UserError
from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.types import Keys

LAYOUT = make_layout(stack_of(2, 0))


def table_spec(kind, sampler, **changes):
    shared = {"name": "t", "storage": kind, "length": 3, "fragment": 3, "batch": 4, "sampler": sampler, "min_size": 2}
    return TableSpec(**shared | {"capacity": 60 if kind == "ring" else 12} | changes)


def make_table(spec, priority=None, index=0):
    return Table(spec, LAYOUT, num_envs=2, seed=7, priority=priority, index=index)


def make_stream(seed=0, **options):
    return Stream(make_envs(seed, 2, LAYOUT, **options), np.arange(2), LAYOUT)


def same_sample(a, b):
    assert (a is None) == (b is None)
    if a is not None:
        for (path, x), (_, y) in zip(tree.items(a), tree.items(b), strict=True):
            assert_same(x, y, path)


class TableMachine(RuleBasedStateMachine):
    """A table and a twin that is sometimes restored from its state: both must always behave the same."""

    @initialize(
        kind=st.sampled_from(
            [("ring", "uniform"), ("ring", "prioritized"), ("slots", "fifo"), ("slots", "prioritized")]
        ),
        seed=st.integers(0, 1000),
        uses=st.integers(1, 3),
    )
    def begin(self, kind, seed, uses):
        self.spec = table_spec(*kind, max_times_sampled=uses)
        self.table, self.twin = self.make(), self.make()
        self.stream = make_stream(seed)
        self.old = []
        self.live = {}  # (slot, generation) -> uses
        self.valid_steps = 0

    def make(self):
        return make_table(self.spec, lambda sequence: np.abs(sequence.rewards["extrinsic"]).sum(axis=0))

    @rule()
    def insert(self):
        fragment = self.stream.fragment(3)
        self.old.append(fragment)
        keys = self.table.insert(fragment)
        same = self.twin.insert(fragment)
        assert_same(dataclasses.asdict(keys), dataclasses.asdict(same))
        assert self.table._storage.alive(keys.slot, keys.generation).all()
        self.live |= dict.fromkeys(zip(keys.slot.tolist(), keys.generation.tolist(), strict=True), 0)
        self.valid_steps += int(fragment.trajectory.valid.sum())
        self.forget_dead()

    def forget_dead(self):
        dead = [key for key in self.live if not self.table._storage.alive(*np.array(key)[:, None])[0]]
        for key in dead:
            del self.live[key]

    @rule(which=st.integers(0, 100))
    def insert_again(self, which):
        if self.old:
            for table in (self.table, self.twin):
                before = table.counters["duplicate"]
                assert len(table.insert(self.old[which % len(self.old)])) == 0
                assert table.counters["duplicate"] == before + 1

    @rule(n=st.integers(1, 6))
    def sample(self, n):
        size = self.table.size
        a, b = self.table.sample(n), self.twin.sample(n)
        same_sample(a, b)
        needed = max(2, n if self.spec.sampler == "fifo" else 1)
        assert (a is None) == (size < needed)
        if a is None:
            return
        assert (a.table_size == size).all()
        keys = list(zip(a.keys.slot.tolist(), a.keys.generation.tolist(), strict=True))
        assert set(keys) <= set(self.live)
        if self.spec.sampler == "fifo":
            assert keys == list(self.live)[:n]  # the oldest
            for key in keys:
                self.live[key] += 1
                if self.live[key] == self.spec.max_times_sampled:
                    del self.live[key]

    @rule(seed=st.integers(0, 100), evict=st.booleans(), stale=st.booleans())
    def use_keys(self, seed, evict, stale):
        if not self.live:
            return
        rng = np.random.default_rng(seed)
        chosen = [list(self.live)[i] for i in rng.integers(0, len(self.live), 3)]
        slot, generation = np.array(chosen).T
        keys = Keys(np.zeros(3, np.int64), np.zeros(3, np.int64), slot, generation - stale)
        ignored = 3 if stale and (evict or self.spec.sampler == "prioritized") else 0
        for table in (self.table, self.twin):
            before = table.counters["stale"]
            table.evict(keys) if evict else table.reprioritize(keys, np.array([0.5, np.nan, 3.0]))
            assert table.counters["stale"] == before + ignored
        if evict and not stale:
            for key in set(chosen):
                del self.live[key]

    @rule()
    def restore_twin(self):
        state = self.table.get_state()
        self.twin = self.make()
        self.twin.set_state(state)
        assert_same(state, self.twin.get_state())

    @invariant()
    def equals_its_twin(self):
        if hasattr(self, "table"):
            self.table.check_valid()
            assert self.table.size == self.twin.size == len(self.live)
            assert self.table.steps == self.valid_steps


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_sequences_are_drawn_with_their_reported_probability(sampler):
    table = make_table(table_spec("ring", sampler, capacity=60), priority=lambda w: w.rewards["rnd"][0] ** 2)
    stream = make_stream(end=0.1)
    for _ in range(30):
        table.insert(stream.fragment(3))
    counts, chance = {}, {}
    for _ in range(400):
        sample = table.sample(50)
        for slot, p in zip(sample.keys.slot.tolist(), sample.probability.tolist(), strict=True):
            counts[slot], chance[slot] = counts.get(slot, 0) + 1, p
    frequent = [slot for slot, p in chance.items() if p * 20_000 > 5]
    rest = 20_000 - sum(counts[slot] for slot in frequent)
    seen = [counts[slot] for slot in frequent]
    want = [chance[slot] * 20_000 for slot in frequent]
    if 20_000 - sum(want) > 5:
        seen, want = [*seen, rest], [*want, 20_000 - sum(want)]
    assert chisquare(seen, np.array(want) * sum(seen) / sum(want)).pvalue > 0.01
    assert sampler == "prioritized" or len(chance) == table.size


def test_initial_priorities_are_computed_from_the_recorded_sequence():
    table = make_table(table_spec("ring", "prioritized", priority_exponent=1.0), priority=lambda w: w.action[0] * 1.0)
    stream = make_stream(end=0.0)
    table.insert(stream.fragment(6))
    total = sum(record["action"] for row in stream.records for record in row[:4])
    sample = table.sample(64)
    np.testing.assert_allclose(sample.probability, sample.trajectory.action[0] / total)


def test_full_queue_drops_its_oldest_items_and_counts_them():
    table = make_table(table_spec("slots", "fifo", capacity=4))
    stream = make_stream()
    for _ in range(3):
        table.insert(stream.fragment(3))
    assert table.counters["full"] == 2
    assert table.counters["inserted"] == 6
    first = table.sample(2)
    assert (first.trajectory.policy_version == [2, 3]).all()  # those of the first fragment are gone


def test_gap_in_sequence_numbers_breaks_the_stream():
    table = make_table(table_spec("ring", "uniform"))
    stream = make_stream(end=0.0)
    table.insert(stream.fragment(3))
    stream.fragment(3)
    assert table.counters["broken"] == 0
    table.insert(stream.fragment(3))
    assert table.counters["broken"] == 2
    later = stream.fragment(3)
    table.insert(dataclasses.replace(later, actor_id=5))  # another actor cannot continue the stream of this one
    assert table.counters["broken"] == 4


def test_keys_of_other_tables_and_shards_are_ignored():
    table = make_table(table_spec("ring", "uniform"))
    keys = table.insert(make_stream(end=0.0).fragment(6))
    for other in (dataclasses.replace(keys, table=keys.table + 1), dataclasses.replace(keys, shard=keys.shard + 1)):
        table.evict(other)
    assert table.size == len(keys)
    assert table.counters["stale"] == 0
    table.evict(keys)
    assert table.size == 0
    assert table.sample(1) is None


def test_ring_cannot_be_a_queue():
    with pytest.raises(UserError, match="queue"):
        make_table(table_spec("ring", "fifo"))


@pytest.mark.parametrize("part", ["obs", "action", "extras", "rewards", "carry"])
def test_data_of_a_wrong_dtype_is_rejected(part):
    fragment = make_stream().fragment(3)
    cast = tree.map(lambda leaf: leaf.astype(np.float64), getattr(fragment.trajectory, part))
    wrong = dataclasses.replace(fragment, trajectory=dataclasses.replace(fragment.trajectory, **{part: cast}))
    with pytest.raises(ValueError, match=part):
        make_table(table_spec("slots", "uniform")).insert(wrong)


def test_draws_differ_between_seeds_shards_and_tables():
    def drawn(**place):
        table = Table(table_spec("ring", "uniform"), LAYOUT, num_envs=2, **{"seed": 7} | place)
        table.insert(make_stream(end=0.0).fragment(6))
        return table.sample(30).keys.slot.tolist()

    assert drawn() == drawn()
    assert len({tuple(drawn(**place)) for place in ({}, {"seed": 8}, {"index": 1}, {"shard": 1})}) == 4


def test_state_survives_json():
    table = make_table(table_spec("ring", "prioritized"))
    table.insert(make_stream().fragment(6))

    def plain(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            return {key: plain(v) for key, v in value.items()}
        if isinstance(value, np.ndarray):
            return value
        return json.loads(json.dumps(value))

    twin = make_table(table_spec("ring", "prioritized"))
    twin.set_state(plain(table.get_state()))
    same_sample(table.sample(8), twin.sample(8))
