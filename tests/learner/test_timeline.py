"""Age of weights in env steps: exact while all points fit, then approximate in bounded memory."""

import numpy as np

from starling.learner.timeline import Timeline


def env_steps_at(version):
    """Env steps at which a version is made, by a learner that slows down."""
    return version * 10 + version**2 // 50


def filled(count, capacity):
    timeline = Timeline(capacity)
    for version in range(1, count + 1):
        timeline.add(version, env_steps_at(version))
    return timeline


def test_every_version_is_exact_below_the_capacity():
    versions = np.arange(60)
    np.testing.assert_array_equal(filled(60, capacity=64).at(versions), env_steps_at(versions))


def test_long_run_is_exact_at_both_ends_and_close_in_the_middle():
    timeline, versions = filled(1000, capacity=64), np.arange(1001)
    error = np.abs(timeline.at(versions) - env_steps_at(versions)) / env_steps_at(1000)
    assert error.max() < 0.001
    assert error[0] == error[1000] == 0
    assert timeline.get_state()["points"].shape[1] <= 65


def test_before_the_first_update_every_version_is_at_step_0():
    np.testing.assert_array_equal(Timeline().at(np.zeros(3, np.int64)), 0)


def test_restored_timeline_continues_identically():
    one, other = filled(70, capacity=64), Timeline(64)
    other.set_state(one.get_state())
    for timeline in (one, other):
        for version in range(71, 200):
            timeline.add(version, env_steps_at(version))
    for mine, theirs in zip(one.get_state().values(), other.get_state().values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
