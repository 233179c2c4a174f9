"""How old weights are in env steps: exact while all points are kept, near it ever after, in bounded room."""

import numpy as np

from starling.learner.timeline import Timeline


def uneven(version):
    """Env steps at which a version is made by a learner that slows down."""
    return version * 10 + version**2 // 50


def filled(count, most):
    timeline = Timeline(most)
    for version in range(1, count + 1):
        timeline.add(version, uneven(version))
    return timeline


def test_every_version_is_known_while_there_is_room():
    versions = np.arange(60)
    np.testing.assert_array_equal(filled(60, most=64).at(versions), uneven(versions))


def test_a_long_run_keeps_both_ends_exact_and_the_middle_near():
    timeline, versions = filled(1000, most=64), np.arange(1001)
    wrong = np.abs(timeline.at(versions) - uneven(versions)) / uneven(1000)
    assert wrong.max() < 0.001
    assert wrong[0] == wrong[1000] == 0
    assert timeline.get_state()["points"].shape[1] <= 65


def test_before_the_first_update_all_is_as_old_as_the_run():
    np.testing.assert_array_equal(Timeline().at(np.zeros(3, np.int64)), 0)


def test_a_restored_one_goes_on_alike():
    one, other = filled(70, most=64), Timeline(64)
    other.set_state(one.get_state())
    for timeline in (one, other):
        for version in range(71, 200):
            timeline.add(version, uneven(version))
    for mine, theirs in zip(one.get_state().values(), other.get_state().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
