"""Credits: granted in turns, granted again when a writer dies; and the ledger, which always balances."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.runtime.credits import ActorSlots, Credits, Ledger
from starling.runtime.worker import Restarts


class FakeLimiter:
    """A limiter that allows a number of envs at the same time."""

    def __init__(self, num_envs: int) -> None:
        self.free = num_envs

    def begin(self, num_envs: int) -> bool:
        if num_envs > self.free:
            return False
        self.free -= num_envs
        return True

    def lost(self, num_envs: int) -> None:
        self.free += num_envs


def actor_slots(groups: int, slots: int = 2, num_envs: int = 4) -> dict[int, ActorSlots]:
    env_indices = np.arange(groups * num_envs).reshape(groups, num_envs)
    return {g: ActorSlots(env_index, [None] * slots, f"actor {g}") for g, env_index in enumerate(env_indices)}


def credits_with_one_writer(groups: int, limiter: FakeLimiter) -> Credits:
    """Credits of groups with one common writer, an inference server, which is ready."""
    all_slots = actor_slots(groups)
    for slots in all_slots.values():
        slots.writer = "inference"
    credits = Credits(all_slots, limiter.begin, limiter.lost)
    credits.writer_begins("inference")
    return credits


def test_every_group_gets_one_credit_before_any_gets_two():
    limiter = FakeLimiter(12)
    credits = Credits(actor_slots(3), limiter.begin, limiter.lost)
    for g in range(3):
        credits.writer_begins(f"actor {g}")
    first = list(credits.grant())
    assert sorted(group for _, group, _ in first) == [0, 0, 1]  # workers start one after the other
    for _, group, slot in first:
        credits.free_slot(group, slot)
        limiter.free += 4
    assert sorted(group for _, group, _ in credits.grant()) == [1, 2, 2]


def test_writer_of_several_groups_gets_credits_evenly():
    limiter = FakeLimiter(12)
    credits = credits_with_one_writer(3, limiter)
    assert [group for _, group, _ in credits.grant()] == [0, 1, 2]


def test_credits_of_a_dead_writer_go_to_others():
    limiter = FakeLimiter(8)
    credits = Credits(actor_slots(2), limiter.begin, limiter.lost)
    credits.writer_begins("actor 0")
    credits.writer_begins("actor 1")
    assert [writer for writer, _, _ in credits.grant()] == ["actor 0", "actor 0"]
    credits.writer_ends("actor 0")
    assert [writer for writer, _, _ in credits.grant()] == ["actor 1", "actor 1"]
    assert list(credits.grant()) == []
    credits.writer_begins("actor 0")
    assert list(credits.grant()) == []
    credits.free_slot(1, 0)
    limiter.free += 4
    assert [writer for writer, _, _ in credits.grant()] == ["actor 0"]


def test_every_incarnation_has_its_own_actor_id():
    credits = Credits(actor_slots(2), lambda num_envs: True, lambda num_envs: None)
    seen = set()
    for _ in range(5):
        seen |= {slots.actor_id(group) for group, slots in credits.actor_slots.items()}
        for group in credits.actor_slots:
            credits.incarnation_ends(group, produced=3)
    assert len(seen) == 10
    assert credits.incarnations == {0: 5, 1: 5}


EVENTS = ("step", "insert", "lose", "die")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.sampled_from(EVENTS)), max_size=60))
def test_ledger_balances_for_any_events(events):
    ledger, incarnation_ids, produced = Ledger(), {0: 0, 1: 100, 2: 200}, {0: 0, 1: 0, 2: 0}
    open_, total_in, total_lost = dict.fromkeys(produced, 0), 0, 0
    for group, steps, event in events:
        if event == "step":
            produced[group] += steps
            open_[group] += steps
        elif event == "insert":
            moved = min(steps, open_[group])
            ledger.on_inserted(incarnation_ids[group], moved)
            open_[group] -= moved
            total_in += moved
        elif event == "lose":
            moved = min(steps, open_[group])
            ledger.on_lost(incarnation_ids[group], moved)
            open_[group] -= moved
            total_lost += moved
        else:
            ledger.on_ended(incarnation_ids[group], produced[group])
            total_lost += open_[group]
            incarnation_ids[group] += 1
            produced[group] = open_[group] = 0
    row = ledger.row({incarnation_ids[group]: count for group, count in produced.items()})
    assert row["produced"] == row["inserted"] + row["lost"] + row["open"]
    assert (row["inserted"], row["lost"], row["open"]) == (total_in, total_lost, sum(open_.values()))


def test_fragment_that_arrives_after_its_incarnation_ended_is_not_lost():
    ledger = Ledger()
    ledger.on_ended(7, produced=30)
    assert ledger.row({})["lost"] == 30
    ledger.on_inserted(7, 20)
    assert ledger.row({}) == {"produced": 30, "inserted": 20, "lost": 10, "open": 0}


def test_restarts_back_off_exponentially_and_stop():
    restarts = Restarts(allowed=4)
    assert [restarts.crashed(float(i)) for i in range(5)] == [0.5, 1.0, 2.0, 4.0, None]


def test_old_crashes_do_not_count():
    restarts = Restarts(allowed=2)
    assert [restarts.crashed(now) for now in (0.0, 1.0, 1000.0, 1001.0, 1002.0)] == [0.5, 1.0, 0.5, 1.0, None]


def test_credits_of_a_lost_env_loop_are_returned_and_granted_to_the_next():
    limiter = FakeLimiter(8)
    credits = credits_with_one_writer(2, limiter)
    assert [group for _, group, _ in credits.grant()] == [0, 1]
    credits.pause(1)
    assert list(credits.grant()) == []
    credits.take_back_unused(1, [0])
    assert [(group, slot) for _, group, slot in credits.grant()] == [(0, 1)]
    credits.resume(1)
    assert list(credits.grant()) == []  # the limit is reached
    credits.free_slot(0, 0)
    limiter.free += 4
    assert [group for _, group, _ in credits.grant()] == [1]


def test_fragment_that_arrives_after_its_env_loop_ended_frees_its_slot_once():
    limiter = FakeLimiter(100)
    credits = credits_with_one_writer(1, limiter)
    assert len(list(credits.grant())) == 2
    credits.pause(0)
    credits.free_slot(0, 1)
    assert list(credits.grant()) == [], "a lost env loop gets no credits"
    credits.resume(0)
    assert [slot for _, _, slot in credits.grant()] == [1]


def test_env_loop_that_restarts_before_its_writer_gets_no_credits():
    limiter = FakeLimiter(100)
    credits = credits_with_one_writer(1, limiter)
    list(credits.grant())
    credits.writer_ends("inference")
    credits.pause(0)
    credits.resume(0)
    assert list(credits.grant()) == []
    credits.writer_begins("inference")
    assert len(list(credits.grant())) == 2
    assert limiter.free == 92
