"""Who leads a group of learners that begins, and who is found to keep it from beginning."""

from starling.runtime.regroup import GRACE, Order, Regroup


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def a_gathering(size=3, patience=30.0):
    clock = Clock()
    return Regroup(size, patience, clock), clock


def a_group_at_work():
    """Three ranks that have begun together."""
    group, clock = a_gathering()
    for rank in range(3):
        group.waits(rank, (0, 0), late=False)
    group.order()
    return group, clock


def test_all_begin_together_from_the_one_who_came_furthest():
    group, _ = a_gathering()
    group.waits(0, (7, 0), late=False)
    group.waits(2, (7, 3), late=False)
    assert group.order() is None
    group.waits(1, (0, 0), late=False)
    assert group.order() == Order(time=1, source=2, updates=7)
    assert group.order() is None, "once"


def test_a_rank_that_dies_while_it_waits_is_waited_for_again():
    group, _ = a_gathering(size=2)
    group.waits(0, (4, 0), late=False)
    group.gone(0)
    group.waits(1, (4, 0), late=False)
    assert group.order() is None
    group.waits(0, (2, 0), late=False)
    assert group.order() == Order(1, source=1, updates=4)


def test_who_does_not_notice_a_late_gradient_is_named_once():
    group, clock = a_group_at_work()
    group.waits(0, (5, 0), late=True)
    clock.now = GRACE / 2
    group.waits(2, (5, 0), late=True)
    assert group.silent() == []
    clock.now = GRACE
    assert group.silent() == [1]
    assert group.silent() == []


def test_a_rank_that_is_gone_is_not_silent_and_one_that_computes_has_time():
    group, clock = a_group_at_work()
    group.gone(1)
    group.waits(0, (5, 0), late=False)  # its connection broke
    clock.now = GRACE + 1
    assert group.silent() == [], "rank 2 may be in the middle of a long update"
    clock.now = 31.0
    assert group.silent() == [2]


def test_ranks_that_start_slowly_are_not_silent():
    group, clock = a_gathering()
    group.waits(0, (0, 0), late=False)
    clock.now = 1e6
    assert group.silent() == []
