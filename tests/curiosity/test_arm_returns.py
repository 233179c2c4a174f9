"""Mean returns and shares of arms on cases worked out by hand."""

import pytest
import torch

from starling.curiosity.arm_returns import ArmReturns


def told(arms, *batches):
    for arm, returns in batches:
        arms.update(torch.tensor(arm, dtype=torch.int64), torch.tensor(returns, dtype=torch.float32))
    return {name: pytest.approx(float(value)) for name, value in arms.metrics().items()}


def test_a_batch_is_a_mean_and_an_arm_that_was_never_played_is_not_told():
    metrics = told(ArmReturns(3, 0.5), ([0, 2, 2, 2], [8.0, 1.0, 2.0, 3.0]))
    assert metrics == {"arm/0/return": 8, "arm/2/return": 2, "arm/0/share": 0.25, "arm/2/share": 0.75}


def test_what_is_old_fades_where_an_arm_is_played_and_stays_where_it_is_not():
    """Arm 0: weights 1/2 and 1/4 of two batches, (1/2 10 + 1/4 4) / (3/4) = 8; arm 1 only in the first."""
    metrics = told(ArmReturns(2, 0.5), ([0, 1], [4.0, 7.0]), ([], []), ([0, 0], [8.0, 12.0]))
    share = (0.5 * 1 + 0.25 * 0.5) / 0.75
    assert metrics == {"arm/0/return": 8, "arm/1/return": 7, "arm/0/share": share, "arm/1/share": 1 - share}


def test_the_best_is_among_those_that_were_played():
    arms = ArmReturns(3, 0.1)
    assert arms.best() == 0
    told(arms, ([1, 2], [-5.0, -1.0]))
    assert arms.best() == 2  # though arm 0 would have 0
    told(arms, ([2, 1], [-11.0, -5.0]))  # arm 2: (0.09 (-1) + 0.1 (-11)) / 0.19 = -6.3
    assert arms.best() == 1


def test_it_is_saved_with_the_weights_and_two_learners_add_their_changes_up():
    one = ArmReturns(2, 0.01)
    told(one, ([0, 1], [4.0, 7.0]))
    other = ArmReturns(2, 0.01)
    other.load_state_dict({name: 2 * value for name, value in one.state_dict().items()})
    assert other.best() == 1
    assert told(other) == told(one)
