"""An evaluator's policy trials: which policies it tries, which one it considers best, and what it saves."""

import json

import pytest
import torch

from starling.intrinsic.bandit import Bandit
from starling.intrinsic.trials import BanditTrials

GREEDY = torch.tensor([0.9, 0.9])  # noise for which no choice is random


def trials(window=8, epsilon=0.5, episodes=3, bonus=1.0, arms=4):
    return BanditTrials(Bandit(arms, window, epsilon=epsilon, bonus=bonus), episodes)


def trials_after(*history, **settings):
    trials_now = trials(**settings)
    for arm, total in history:
        trials_now.learn(arm, total)
    return trials_now


ONCE = [(0, 1.0), (1, 5.0), (2, 0.0), (3, 2.0)]


def test_every_policy_is_tried_first_and_never_twice_at_the_same_time():
    trials_now = trials()
    assert trials_now.due == 4
    assert trials_now.choose([], GREEDY) == 0
    assert trials_now.choose([0], GREEDY) == 1
    trials_now.learn(1, 5.0)
    assert trials_now.choose([0], GREEDY) == 2
    assert trials_now.choose([0, 2], GREEDY) == 3


def test_after_one_trial_each_the_bandit_chooses():
    trials_now = trials_after(*ONCE)
    assert trials_now.due == 3
    assert trials_now.choose([], GREEDY) == 1
    assert trials_now.choose([], torch.tensor([0.4, 0.6])) == 2  # at random
    with_bonus = trials_after(*ONCE, *[(1, 5.0)] * 4, bonus=9.0)
    assert with_bonus.choose([], GREEDY) == 3  # 2 + 9 > 5 + 9 / sqrt(5)
    assert with_bonus.best == 1  # without the bonus


def test_best_policy_has_the_largest_mean_within_the_window():
    assert trials().best == 0  # without any trial: the exploiting policy
    assert trials_after((2, -3.0), (3, -5.0)).best == 2  # policies without a trial do not count as 0
    assert trials_after(*ONCE).best == 1
    assert trials_after(*ONCE, (1, 0.0), (1, 0.0)).best == 3  # mean 5 / 3
    assert trials_after((1, 9.0), *[(0, 1.0), (2, 2.0)] * 4).best == 2  # the 9 is no longer in the window


def test_policy_without_trials_in_the_window_is_tried_again():
    trials_now = trials_after(*ONCE, *[(0, 1.0)] * 6, episodes=0)
    assert trials_now.due == 1
    assert trials_now.choose([], GREEDY) == 1


def test_metrics_are_means_and_shares_within_the_window():
    metrics = trials_after((1, 2.0), (1, 4.0), (3, 7.0), (1, 0.0)).metrics()
    expected = {"arm/1/return": 2.0, "arm/3/return": 7.0, "arm/1/share": 0.75, "arm/3/share": 0.25}
    assert metrics == pytest.approx(expected)


def test_state_is_json_and_complete():
    before = trials_after(*ONCE, *[(i % 3, 0.1 * i) for i in range(9)])
    state = json.loads(json.dumps(before.get_state()))
    after = trials()
    after.set_state(state)
    assert (after.best, after.due, after.played) == (before.best, before.due, 13)
    assert after.metrics() == before.metrics()
    for trials_now in (before, after):
        trials_now.learn(3, 4.0)
    assert after.get_state() == before.get_state()


def test_state_from_other_settings_is_restored_as_far_as_possible():
    state = trials_after(*ONCE, (3, 9.0), (0, 2.0)).get_state()
    fewer = trials(arms=2, window=2)
    fewer.set_state(state)
    assert fewer.get_state() == {"arms": [1, 0], "returns": [5.0, 2.0], "played": 6}
    none = trials()
    none.set_state({})
    assert none.get_state() == trials().get_state()
