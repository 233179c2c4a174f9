"""Credits: dealt in order, dealt again when a writer dies, and books that balance."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.runtime.credits import ActorSlots, Credits, Ledger
from starling.runtime.worker import Restarts


class Room:
    """A limiter that allows so many rows at once."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def begin(self, rows: int) -> bool:
        if rows > self.left:
            return False
        self.left -= rows
        return True

    def lost(self, rows: int) -> None:
        self.left += rows


def actor_slots(groups: int, slots: int = 2, rows: int = 4) -> dict[int, ActorSlots]:
    return {g: ActorSlots(np.arange(g * rows, (g + 1) * rows), [None] * slots, f"actor {g}") for g in range(groups)}


def served(groups: int, room: Room) -> Credits:
    """Credits of groups whose writer is a server of all of them, which has begun."""
    all_slots = actor_slots(groups)
    for slots in all_slots.values():
        slots.writer = "inference"
    credits = Credits(all_slots, room.begin, room.lost)
    credits.writer_begins("inference")
    return credits


def test_every_group_gets_one_before_any_gets_two():
    room = Room(12)
    credits = Credits(actor_slots(3), room.begin, room.lost)
    for g in range(3):
        credits.writer_begins(f"actor {g}")
    first = list(credits.grant())
    assert sorted(group for _, group, _ in first) == [0, 0, 1]  # workers start one after the other
    for _, group, slot in first:
        credits.returned(group, slot)
        room.left += 4
    assert sorted(group for _, group, _ in credits.grant()) == [1, 2, 2]


def test_one_writer_of_many_groups_deals_evenly():
    room = Room(12)
    credits = served(3, room)
    assert [group for _, group, _ in credits.grant()] == [0, 1, 2]


def test_credits_of_a_dead_writer_go_to_the_living():
    room = Room(8)
    credits = Credits(actor_slots(2), room.begin, room.lost)
    credits.writer_begins("actor 0")
    credits.writer_begins("actor 1")
    assert [writer for writer, _, _ in credits.grant()] == ["actor 0", "actor 0"]
    credits.writer_ends("actor 0")
    assert [writer for writer, _, _ in credits.grant()] == ["actor 1", "actor 1"]
    assert list(credits.grant()) == []
    credits.writer_begins("actor 0")
    assert list(credits.grant()) == []
    credits.returned(1, 0)
    room.left += 4
    assert [writer for writer, _, _ in credits.grant()] == ["actor 0"]


def test_every_incarnation_has_its_own_actor_id():
    credits = Credits(actor_slots(2), lambda rows: True, lambda rows: None)
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
def test_the_books_balance_whatever_happens(events):
    ledger, lives, produced = Ledger(), {0: 0, 1: 100, 2: 200}, {0: 0, 1: 0, 2: 0}
    open_, total_in, total_lost = dict.fromkeys(produced, 0), 0, 0
    for group, steps, event in events:
        if event == "step":
            produced[group] += steps
            open_[group] += steps
        elif event == "insert":
            taken = min(steps, open_[group])
            ledger.inserted(lives[group], taken)
            open_[group] -= taken
            total_in += taken
        elif event == "lose":
            taken = min(steps, open_[group])
            ledger.lost(lives[group], taken)
            open_[group] -= taken
            total_lost += taken
        else:
            ledger.ended(lives[group], produced[group])
            total_lost += open_[group]
            lives[group] += 1
            produced[group] = open_[group] = 0
    row = ledger.row({lives[group]: count for group, count in produced.items()})
    assert row["produced"] == row["inserted"] + row["lost"] + row["open"]
    assert (row["inserted"], row["lost"], row["open"]) == (total_in, total_lost, sum(open_.values()))


def test_a_fragment_that_arrives_after_its_incarnation_has_ended_is_not_lost():
    ledger = Ledger()
    ledger.ended(7, produced=30)
    assert ledger.row({})["lost"] == 30
    ledger.inserted(7, 20)
    assert ledger.row({}) == {"produced": 30, "inserted": 20, "lost": 10, "open": 0}


def test_restarts_back_off_and_end():
    restarts = Restarts(allowed=4)
    assert [restarts.crashed(float(i)) for i in range(5)] == [0.5, 1.0, 2.0, 4.0, None]


def test_crashes_long_ago_are_forgiven():
    restarts = Restarts(allowed=2)
    assert [restarts.crashed(now) for now in (0.0, 1.0, 1000.0, 1001.0, 1002.0)] == [0.5, 1.0, 0.5, 1.0, None]


def test_what_was_lent_for_a_lost_env_loop_comes_back_and_waits_for_the_next():
    room = Room(8)
    credits = served(2, room)
    assert [group for _, group, _ in credits.grant()] == [0, 1]
    credits.pause(1)
    assert list(credits.grant()) == []
    credits.given_back(1, [0])
    assert [(group, slot) for _, group, slot in credits.grant()] == [(0, 1)]
    credits.go_on(1)
    assert list(credits.grant()) == []  # no room
    credits.returned(0, 0)
    room.left += 4
    assert [group for _, group, _ in credits.grant()] == [1]


def test_a_fragment_that_arrives_after_its_env_loop_is_gone_frees_its_slot_once():
    room = Room(100)
    credits = served(1, room)
    assert len(list(credits.grant())) == 2
    credits.pause(0)
    credits.returned(0, 1)
    assert list(credits.grant()) == [], "nothing is lent for whoever is gone"
    credits.go_on(0)
    assert [slot for _, _, slot in credits.grant()] == [1]


def test_an_env_loop_that_comes_back_before_its_writer_is_lent_nothing():
    room = Room(100)
    credits = served(1, room)
    list(credits.grant())
    credits.writer_ends("inference")
    credits.pause(0)
    credits.go_on(0)
    assert list(credits.grant()) == []
    credits.writer_begins("inference")
    assert len(list(credits.grant())) == 2
    assert room.left == 92
