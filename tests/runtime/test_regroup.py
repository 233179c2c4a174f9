"""Regrouping of learners: which rank is the source, and which rank holds the others up."""

import pytest

from starling.runtime.regroup import FIRST_PAUSE, GRACE, LONGEST_PAUSE, MAX_FAILURES, Order, Regroup
from starling.runtime.supervisor import RunFailedError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_regroup(size=3, timeout=30.0):
    clock = Clock()
    return Regroup(size, timeout, clock, uniform=lambda low, high: high), clock


def working_group():
    """Three ranks that have started together."""
    group, clock = make_regroup()
    for rank in range(3):
        group.on_waiting(rank, (0, 0), late=False)
    group.order()
    return group, clock


def test_all_start_together_from_the_rank_with_the_most_updates():
    group, _ = make_regroup()
    group.on_waiting(0, (7, 0), late=False)
    group.on_waiting(2, (7, 3), late=False)
    assert group.order() is None
    group.on_waiting(1, (0, 0), late=False)
    assert group.order() == Order(attempt=1, source=2, updates=7)
    assert group.order() is None, "once"


def test_rank_that_dies_while_waiting_must_wait_again():
    group, _ = make_regroup(size=2)
    group.on_waiting(0, (4, 0), late=False)
    group.on_exit(0)
    group.on_waiting(1, (4, 0), late=False)
    assert group.order() is None
    group.on_waiting(0, (2, 0), late=False)
    assert group.order() == Order(1, source=1, updates=4)


def test_rank_that_does_not_report_a_late_gradient_is_named_once():
    group, clock = working_group()
    group.on_waiting(0, (5, 0), late=True)
    clock.now = GRACE / 2
    group.on_waiting(2, (5, 0), late=True)
    assert group.overdue_ranks() == []
    clock.now = GRACE
    assert group.overdue_ranks() == [1]
    assert group.overdue_ranks() == []


def test_lost_rank_is_not_overdue_and_a_computing_rank_has_time():
    group, clock = working_group()
    group.on_exit(1)
    group.on_waiting(0, (5, 0), late=False)  # its connection is broken
    clock.now = GRACE + 1
    assert group.overdue_ranks() == [], "rank 2 may be in the middle of a long update"
    clock.now = 31.0
    assert group.overdue_ranks() == [2]


def test_ranks_that_start_slowly_are_not_overdue():
    group, clock = make_regroup()
    group.on_waiting(0, (0, 0), late=False)
    clock.now = 1e6
    assert group.overdue_ranks() == []


def lose_all(group, updates, why="Connection closed by peer"):
    for rank in range(3):
        group.on_waiting(rank, (updates, 0), late=False, why=why)


def pause(group, clock):
    """Seconds until the next order."""
    begin = clock.now
    while group.order() is None:
        clock.now += FIRST_PAUSE / 4
        assert clock.now < begin + 2 * LONGEST_PAUSE
    return clock.now - begin


def test_failed_attempts_wait_longer_and_longer_and_finally_end_the_run():
    group, clock = working_group()
    pauses = []
    for _ in range(MAX_FAILURES - 1):
        lose_all(group, 0)
        pauses.append(pause(group, clock))
    assert pauses == [min(LONGEST_PAUSE, FIRST_PAUSE * 2**n) for n in range(MAX_FAILURES - 1)]
    lose_all(group, 0)
    with pytest.raises(RunFailedError, match=f"{MAX_FAILURES} times in a row .* learner 2: Connection closed by peer"):
        group.order()
    assert group.order() is None, "it fails once; the state is saved meanwhile"


def test_pause_is_random_so_that_runs_beside_each_other_do_not_keep_step():
    asked = []
    group = Regroup(1, 30.0, Clock(), uniform=lambda low, high: asked.append((low, high)) or low)
    group.on_waiting(0, (0, 0), late=False)
    group.order()
    group.on_waiting(0, (0, 0), late=False, why="x")
    group.order()
    assert asked == [(0, 0), (FIRST_PAUSE / 2, FIRST_PAUSE)]


def test_attempt_with_an_update_or_after_the_end_of_a_process_does_not_count():
    group, clock = working_group()
    for updates in range(1, 2 * MAX_FAILURES):
        lose_all(group, updates)
        assert pause(group, clock) == 0
    for _ in range(2 * MAX_FAILURES):  # the supervisor gives such a process up
        group.on_exit(1)
        lose_all(group, updates)
        assert pause(group, clock) == 0


def test_rank_that_dies_in_the_pause_begins_another():
    group, clock = working_group()
    lose_all(group, 0)
    assert group.order() is None
    group.on_exit(0)
    clock.now += LONGEST_PAUSE
    assert group.order() is None
    group.on_waiting(0, (0, 0), late=False)
    assert pause(group, clock) == FIRST_PAUSE
