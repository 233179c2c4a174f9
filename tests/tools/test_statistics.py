"""Statistics of scores compared with stored values, with scipy by rliable's definitions, and with identities.

The stored values were computed once with scipy 1.17.1 by the definitions in rliable's `metrics.py`: `trim_mean(scores,
0.25, axis=None)`, and the mean over tasks of `mannwhitneyu(x, y, alternative="greater")`, divided by the number of
pairs. rliable itself was not run.
"""

from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from starling.tools.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement

X = [[-0.42, 2.26, 0.13], [0.74, 0.92, 0.26], [-0.37, 1.65, 1.36], [-0.95, 3.35, 1.97], [0.24, 1.9, 0.53]]
Y = [[0.38, 2.08, -2.01], [1.65, 3.3, 3.14], [-0.1, 2.31, -2.74], [0.18, 1.4, -2.19]]
TIED = [[1, 2], [2, 2], [3, 5], [3, 1], [4, 2]]
ALSO_TIED = [[1, 2], [3, 3], [3, 2], [0, 5], [4, 9]]

VALUES = st.integers(-6, 6).map(float) | st.floats(-1e6, 1e6)
"""Small integers, so that there are ties, and any number."""


def matrices(tasks=None):
    columns = st.integers(1, 3) if tasks is None else st.just(tasks)
    return st.tuples(st.integers(1, 7), columns).flatmap(lambda shape: arrays(np.float64, shape, elements=VALUES))


pairs = st.integers(1, 3).flatmap(lambda tasks: st.tuples(matrices(tasks), matrices(tasks)))


@pytest.mark.parametrize(
    ("scores", "stored"),
    [
        (X, 0.8588888888888889),
        (Y, 0.9316666666666666),
        (TIED, 2.3333333333333335),
        (ALSO_TIED, 2.8333333333333335),
        ([[1], [2], [7]], 3.3333333333333335),
    ],
)
def test_iqm_equals_the_stored_value(scores, stored):
    assert interquartile_mean(scores) == pytest.approx(stored, rel=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "stored"), [(X, Y, 0.4666666666666666), (Y, X, 0.5333333333333333), (TIED, ALSO_TIED, 0.41)]
)
def test_probability_of_improvement_equals_the_stored_value(x, y, stored):
    assert probability_of_improvement(x, y) == pytest.approx(stored, rel=1e-12)


@given(matrices())
def test_iqm_equals_the_trimmed_mean_of_scipy(scores):
    assert interquartile_mean(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None), abs=1e-6)


@given(matrices(), st.randoms(use_true_random=False))
def test_iqm_lies_between_the_extremes_in_any_order(scores, random):
    value, slack = interquartile_mean(scores), 1e-9 * np.abs(scores).max()
    assert scores.min() - slack <= value <= scores.max() + slack
    shuffled = scores.ravel().tolist()
    random.shuffle(shuffled)
    assert interquartile_mean(np.reshape(shuffled, scores.shape)) == value


@given(pairs)
def test_probability_of_improvement_equals_the_mann_whitney_statistic(pair):
    x, y = pair
    runs = len(x) * len(y)
    each = [
        scipy.stats.mannwhitneyu(x[:, task], y[:, task], alternative="greater", method="asymptotic").statistic / runs
        for task in range(x.shape[1])
    ]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(each))


@given(pairs)
def test_probabilities_of_x_over_y_and_y_over_x_add_up_to_1(pair):
    x, y = pair
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)
    assert probability_of_improvement(x, x) == 0.5


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_interval_matches_that_of_all_possible_resamples(confidence):
    """3 runs of 2 tasks have 27 x 27 equally likely resamples; resampling is within tasks."""
    scores = np.array([[0.0, 100.0], [1.0, 110.0], [5.0, 170.0]])
    draws = list(product(range(3), repeat=3))
    exact = [np.mean([scores[list(one), 0], scores[list(two), 1]]) for one in draws for two in draws]
    expected = np.quantile(exact, [(1 - confidence) / 2, (1 + confidence) / 2])
    found = bootstrap_interval(np.mean, scores, rng=np.random.default_rng(0), resamples=20_000, confidence=confidence)
    assert found == pytest.approx(expected, abs=1.0)


def test_resampling_is_within_tasks():
    scores = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])
    seen = []

    def watch(one, other):
        seen.append((one, other))
        return 0.0

    bootstrap_interval(watch, scores, scores[:3] + 100, rng=np.random.default_rng(1), resamples=200)
    for one, other in seen:
        assert (one.shape, other.shape) == ((4, 2), (3, 2))
        for task in range(2):
            assert set(one[:, task]) <= set(scores[:, task])
            assert set(other[:, task]) <= set(scores[:3, task] + 100)
    assert any(len(set(one[:, 0])) < 4 for one, _ in seen), "with replacement"
    assert any((one[:, 1] - one[:, 0] != 10).any() for one, _ in seen), "tasks are drawn independently"
    assert any((one[:3] + 100 != other).any() for one, other in seen), "arrays are drawn independently"


def test_same_seed_gives_the_same_interval_and_constant_scores_an_empty_one():
    one, two = (bootstrap_interval(interquartile_mean, X, rng=np.random.default_rng(7)) for _ in range(2))
    assert one == two
    assert one[0] < interquartile_mean(X) < one[1]
    assert bootstrap_interval(interquartile_mean, [3.0] * 5, rng=np.random.default_rng(0)) == (3.0, 3.0)
    low, high = bootstrap_interval(probability_of_improvement, X, Y, rng=np.random.default_rng(0))
    assert 0 <= low < probability_of_improvement(X, Y) < high <= 1


@pytest.mark.parametrize("scores", [[], [[]], [1.0, np.nan], [np.inf], 3.0, np.zeros((2, 2, 2))])
def test_invalid_scores_are_rejected(scores):
    with pytest.raises(ValueError, match="scores must be"):
        interquartile_mean(scores)


def test_different_tasks_and_impossible_confidences_are_rejected():
    with pytest.raises(ValueError, match="X has 3 tasks and Y has 2"):
        probability_of_improvement(X, TIED)
    for wrong in ({"resamples": 0}, {"confidence": 0.0}, {"confidence": 1.0}):
        with pytest.raises(ValueError, match="needs resamples"):
            bootstrap_interval(np.mean, X, rng=np.random.default_rng(0), **wrong)
