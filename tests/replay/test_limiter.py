import json
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from starling.errors import UserError
from starling.replay.batching import split
from starling.replay.limiter import Limiter, check
from starling.replay.spec import TableSpec


def queue(name="queue", **changes):
    spec = {"storage": "slots", "length": 5, "fragment": 5, "batch": 4, "capacity": 16, "sampler": "fifo"}
    return TableSpec(name, **spec | changes)


def replay(name="replay", **changes):
    spec = {"storage": "ring", "length": 1, "fragment": 5, "batch": 4, "capacity": 1000, "min_size": 40}
    return TableSpec(name, **spec | changes)


def circular(name="old", **changes):
    return queue(name, **{"sampler": "uniform", "min_size": 6} | changes)


MIXES = {
    "synchronous": ([queue(max_lag=0)], (2, 2)),
    "lagging": ([queue(max_lag=1)], (3, 1)),
    "free": ([queue(capacity=5)], (2, 3)),
    "used twice": ([queue(max_times_sampled=2, max_lag=2)], (2, 2)),
    "replay": ([replay(updates_per_step=1 / 3, min_size=5)], (1, 2)),
    "replay, many updates": ([replay(updates_per_step=2.0, min_size=5)], (2, 2)),
    "replay, unlimited": ([replay(min_size=5)], (2,)),
    "half and half": ([queue(share=0.5, capacity=4), circular(share=0.5)], (2, 1)),
    "half and half, synchronous": ([queue(share=0.5, max_lag=0), circular(share=0.5)], (2, 2)),
}


WHILE_FILLING = -1
"""The version of fragments begun before every replay had its min_size: until then any group may begin."""


class LimiterMachine(RuleBasedStateMachine):
    """Actors and a learner in any order: there is no deadlock, and no rule is broken."""

    @initialize(mix=st.sampled_from(sorted(MIXES)))
    def begin_with(self, mix):
        self.specs, self.groups = MIXES[mix]
        check(self.specs, sum(self.groups), self.groups)
        self.limiter = Limiter(self.specs, sum(self.groups))
        self.takes = split(4, [spec.share for spec in self.specs])
        self.busy = {}  # group -> version with which it began
        self.tables = [[] for _ in self.specs]  # items: [version, uses], oldest first
        self.steps, self.start = 0, None
        self.sampled, self.learning, self.version = 0, [], 0

    def filled(self):
        return all(len(t) >= spec.min_size for t, spec in zip(self.tables, self.specs, strict=True))

    def replays_filled(self):
        both = zip(self.tables, self.specs, strict=True)
        return all(len(table) >= spec.min_size for table, spec in both if spec.sampler != "fifo")

    def can_sample(self):
        return self.limiter.may_sample([len(table) for table in self.tables])

    def may_begin(self):
        """The groups that may begin their next fragment now."""
        return [i for i, size in enumerate(self.groups) if i not in self.busy and self.limiter.may_begin(size)]

    @rule(choice=st.integers(0, 99))
    def advance(self, choice):
        """Do one of the actions that are possible now; with several rules Hypothesis would leave out some for long."""
        actions = [
            *(partial(self.begin, group) for group in self.may_begin()),
            *(partial(self.insert, group, ended) for group in self.busy for ended in (False, True)),
            *(partial(self.lose_actor, group) for group in self.busy),
            *([self.sample] if self.can_sample() else []),
            *([self.publish] if self.learning else []),
            self.save_and_load,
        ]
        actions[choice % len(actions)]()

    def begin(self, group):
        self.limiter.begin(self.groups[group])
        self.busy[group] = self.version if self.replays_filled() else WHILE_FILLING

    def insert(self, group, ended):
        version, num_envs = self.busy.pop(group), self.groups[group]
        for spec, table in zip(self.specs, self.tables, strict=True):
            table.extend([version, 0] for _ in range(num_envs * (5 if spec.storage == "ring" else 1)))
            del table[: max(0, len(table) - spec.capacity)]
        steps = num_envs * 5 - ended
        self.steps += steps
        self.limiter.on_inserted(steps, num_envs)
        self.can_sample()  # the learner asks after every insertion
        if self.start is None and self.filled():
            self.start = self.steps

    def lose_actor(self, group):
        del self.busy[group]
        self.limiter.on_lost(self.groups[group])

    def sample(self):
        for spec, table, take in zip(self.specs, self.tables, self.takes, strict=True):
            assert len(table) >= spec.min_size
            if spec.sampler == "fifo":
                assert len(table) >= take
                if spec.max_lag == 0:
                    assert all(version in (self.sampled, WHILE_FILLING) for version, _ in table[:take])
                for item in table[:take]:
                    item[1] += 1
                table[:] = [item for item in table if item[1] < spec.max_times_sampled]
        self.limiter.on_sampled()
        self.sampled += 1
        self.learning.append(self.sampled)

    def publish(self):
        self.version = self.learning.pop(0)
        self.limiter.on_published()

    def save_and_load(self):
        state = json.loads(json.dumps(self.limiter.get_state()))
        self.limiter = Limiter(self.specs, sum(self.groups))
        self.limiter.set_state(state)

    @invariant()
    def no_deadlock(self):
        if hasattr(self, "limiter"):
            self.limiter.check_valid()
            assert self.may_begin() or self.busy or self.learning or self.can_sample()

    @invariant()
    def batches_follow_steps(self):
        if not hasattr(self, "limiter"):
            return
        for spec in self.specs:
            if spec.updates_per_step is None or self.start is None:
                continue
            ratio = Fraction(spec.updates_per_step).limit_denominator(1000)
            since = self.steps - self.start
            assert self.sampled <= 1 + int(since * ratio)
            owed = since * ratio - self.sampled
            most = 2 * sum(self.groups) * 5 * ratio + max(self.groups) * 5 * ratio
            assert owed <= most, "actors ran away from the learner"
            if self.filled():
                assert self.can_sample() == (self.sampled < 1 + int(since * ratio))

    @invariant()
    def queues_stay_short(self):
        if hasattr(self, "limiter") and len(self.specs) == 1 and self.specs[0].sampler == "fifo":
            spec, take = self.specs[0], self.takes[0]
            outstanding = sum(self.groups[g] for g in self.busy) + len(self.tables[0])
            limit = spec.capacity if spec.max_lag is None else take * (1 + spec.max_lag)
            assert outstanding <= max(limit, take - 1 + max(self.groups))


TestLimiter = LimiterMachine.TestCase
TestLimiter.settings = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("ratio", "exact"),
    [(1 / 3, Fraction(1, 3)), (0.25, Fraction(1, 4)), (128 / 256, Fraction(1, 2)), (8.0, Fraction(8))],
)
def test_learner_that_is_always_ready_makes_exactly_the_configured_updates(ratio, exact):
    limiter, batches = Limiter([replay(updates_per_step=ratio, min_size=1)], 1), 0
    for step in range(3001):
        limiter.begin(1)
        limiter.on_inserted(1 if step else 7, 1)  # the first 7 steps, which fill it, do not count
        while limiter.may_sample([1]):
            limiter.on_sampled()
            batches += 1
        assert batches == 1 + int(step * exact)


def test_one_round_of_fragments_may_be_in_flight_while_the_learner_works():
    limiter = Limiter([replay(updates_per_step=0.2)], num_envs=2)  # one fragment of one env allows one batch
    limiter.begin(2)
    limiter.on_inserted(40, 2)
    assert limiter.may_sample([40])
    begun = 0
    while begun < 10 and limiter.may_begin(1):
        limiter.begin(1)
        begun += 1
    assert begun == 3  # the learner is not behind, so one round and the fragment that exceeds it


def test_synchronous_credits_return_only_after_publishing():
    limiter = Limiter([queue(max_lag=0)], num_envs=4)
    assert limiter.may_begin(4)
    limiter.begin(4)
    assert not limiter.may_begin(1)
    limiter.on_inserted(20, 4)
    assert limiter.may_sample([4])
    limiter.on_sampled()
    assert not limiter.may_begin(1)
    limiter.on_published()
    assert limiter.may_begin(4)


def test_credits_of_a_lost_actor_are_given_out_again():
    limiter = Limiter([queue(max_lag=0)], num_envs=4)
    limiter.begin(2)
    limiter.begin(2)
    assert not limiter.may_begin(2)
    limiter.on_lost(2)
    assert limiter.may_begin(2)
    assert limiter.get_state()["in_flight"] == 2


@pytest.mark.parametrize(
    ("specs", "groups", "message"),
    [
        ([queue(capacity=3)], (1,), "never holds"),
        ([queue(capacity=4)], (8,), "below an actor's 8"),
        ([queue(max_lag=0)], (3,), "multiple"),
        ([queue(max_lag=0, batch=6)], (3, 2), "equally many"),
        ([queue(max_lag=0)], (4, 2, 2), "equally many"),
        ([queue(max_lag=0, max_times_sampled=2)], (4,), "one use"),
        ([queue(max_lag=1, min_size=9)], (4,), "never reached"),
        ([queue(min_size=17)], (4,), "waits for 17 items, and 16 fit"),
        ([queue(updates_per_step=1.0)], (4,), "pace"),
        ([queue(storage="ring")], (4,), "fifo needs storage slots"),
        ([replay(capacity=10, length=5)], (2,), "too small for sequences"),
        ([replay(min_size=1001)], (2,), "waits for 1,001 items, and about"),
        ([replay(capacity=39, batch=40, min_size=1)], (2,), "smaller than a batch of 40 items"),
        ([replay(period=10, length=10, min_size=200)], (2,), "waits for 200 items, and about"),
        ([replay(max_lag=0)], (2,), "max_lag is for fifo"),
        ([queue(share=0.5), circular(share=0.5, fragment=3, length=3)], (2,), "one fragment"),
        ([queue(share=0.5), circular(share=0.5, batch=5)], (2,), "one batch"),
        ([queue(share=0.5), circular(share=0.5, updates_per_step=1.0)], (2,), "pace"),
        ([queue("a", share=0.75), queue("b", share=0.25)], (2,), "equally fast"),
        ([queue(share=0.99), circular(share=0.01)], (2,), "is below one item"),
    ],
)
def test_settings_that_would_deadlock_are_rejected(specs, groups, message):
    with pytest.raises(UserError, match=message):
        check(specs, sum(groups), groups)


def test_shares_are_split_by_largest_remainder():
    assert split(32, [0.5, 0.5]) == [16, 16]
    assert split(10, [1, 1, 1]) == [4, 3, 3]
    assert split(8, [1 / 8, 7 / 8]) == [1, 7]
    assert split(3, [0.2, 0.3, 0.5]) == [1, 1, 1]
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, shares = int(rng.integers(1, 100)), rng.random(rng.integers(1, 6)) + 1e-3
        counts = split(n, shares.tolist())
        assert sum(counts) == n
        assert np.abs(counts - n * shares / shares.sum()).max() < 1
    with pytest.raises(UserError, match="shares"):
        split(4, [0.0])
