"""Regrouping of learners: which rank is the source, and which rank holds the others up."""

from starling.runtime.regroup import GRACE, Order, Regroup


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_regroup(size=3, timeout=30.0):
    clock = Clock()
    return Regroup(size, timeout, clock), clock


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
