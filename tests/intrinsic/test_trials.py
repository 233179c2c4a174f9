"""Which policies an evaluator tries, which it then takes for the best, and what it leaves to the next evaluation."""

import json

import pytest
import torch

from starling.intrinsic.bandit import Bandit
from starling.intrinsic.trials import BanditTrials

LATE = torch.tensor([0.9, 0.9])  # noise with which nothing is at random


def trials(window=8, epsilon=0.5, episodes=3, bonus=1.0, arms=4):
    return BanditTrials(Bandit(arms, window, epsilon=epsilon, bonus=bonus), episodes)


def played(*history, **settings):
    made = trials(**settings)
    for arm, total in history:
        made.learn(arm, total)
    return made


ONCE = [(0, 1.0), (1, 5.0), (2, 0.0), (3, 2.0)]


def test_every_policy_is_tried_first_and_none_twice_at_once():
    made = trials()
    assert made.due == 4
    assert made.choose([], LATE) == 0
    assert made.choose([0], LATE) == 1
    made.learn(1, 5.0)
    assert made.choose([0], LATE) == 2
    assert made.choose([0, 2], LATE) == 3


def test_then_the_bandit_chooses():
    made = played(*ONCE)
    assert made.due == 3
    assert made.choose([], LATE) == 1
    assert made.choose([], torch.tensor([0.4, 0.6])) == 2  # at random
    curious = played(*ONCE, *[(1, 5.0)] * 4, bonus=9.0)
    assert curious.choose([], LATE) == 3  # 2 + 9 > 5 + 9 / sqrt(5)
    assert curious.best == 1  # without the bonus


def test_the_best_has_the_largest_mean_within_the_window():
    assert trials().best == 0  # nothing is known: the one that exploits
    assert played((2, -3.0), (3, -5.0)).best == 2  # those without a trial are not taken for 0
    assert played(*ONCE).best == 1
    assert played(*ONCE, (1, 0.0), (1, 0.0)).best == 3  # mean 5 / 3
    assert played((1, 9.0), *[(0, 1.0), (2, 2.0)] * 4).best == 2  # the 9 has left the window


def test_a_policy_that_has_left_the_window_is_tried_again():
    made = played(*ONCE, *[(0, 1.0)] * 6, episodes=0)
    assert made.due == 1
    assert made.choose([], LATE) == 1


def test_metrics_are_means_and_shares_of_what_is_in_the_window():
    told = played((1, 2.0), (1, 4.0), (3, 7.0), (1, 0.0)).metrics()
    expected = {"arm/1/return": 2.0, "arm/3/return": 7.0, "arm/1/share": 0.75, "arm/3/share": 0.25}
    assert told == pytest.approx(expected)


def test_a_state_is_json_and_all_that_is_known():
    before = played(*ONCE, *[(i % 3, 0.1 * i) for i in range(9)])
    state = json.loads(json.dumps(before.get_state()))
    after = trials()
    after.set_state(state)
    assert (after.best, after.due, after.played) == (before.best, before.due, 13)
    assert after.metrics() == before.metrics()
    for made in (before, after):
        made.learn(3, 4.0)
    assert after.get_state() == before.get_state()


def test_of_a_state_with_other_settings_what_still_has_a_meaning_is_kept():
    state = played(*ONCE, (3, 9.0), (0, 2.0)).get_state()
    fewer = trials(arms=2, window=2)
    fewer.set_state(state)
    assert fewer.get_state() == {"arms": [1, 0], "returns": [5.0, 2.0], "played": 6}
    none = trials()
    none.set_state({})
    assert none.get_state() == trials().get_state()
