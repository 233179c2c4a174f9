"""Statistics of scores over several runs, as 2108.13264 recommends: interquartile mean, bootstrap, improvement.

Scores are arrays [runs, tasks], or [runs] if there is one task.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores = NDArray[np.float64]


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores, runs and tasks pooled.

    With the n scores sorted and k = floor(n / 4), it is (x_{k+1} + … + x_{n-k}) / (n - 2k), which is a 25% trimmed
    mean. Of fewer than four scores it is their mean.

    Args:
        scores: scores [runs, tasks] or [runs].

    Returns:
        The interquartile mean (IQM).

    Raises:
        ValueError: there are no scores, or some are not finite.
    """
    pooled = np.sort(_matrix(scores), axis=None)
    cut = pooled.size // 4
    return float(pooled[cut : pooled.size - cut].mean())


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """Probability that a run of X scores higher than a run of Y on the same task, averaged over tasks.

    For each task it is U / (n m), with the Mann-Whitney statistic U = Σ_i Σ_j ([x_i > y_j] + [x_i = y_j] / 2), so that
    a tie counts half.

    Args:
        x: scores of X, [n, tasks] or [n].
        y: scores of Y, [m, tasks] or [m]; the number of runs may differ.

    Returns:
        The mean over tasks of P(X > Y), between 0 and 1.

    Raises:
        ValueError: the numbers of tasks differ, there are no scores, or some are not finite.
    """
    ours, theirs = _matrix(x), _matrix(y)
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(f"X has {ours.shape[1]} tasks and Y has {theirs.shape[1]}; compare them on the same tasks")
    one, other = ours[:, None], theirs[None]  # [n, 1, tasks], [1, m, tasks]
    return float(((one > other) + 0.5 * (one == other)).mean())


def bootstrap_interval(
    statistic: Callable[..., float],
    *scores: ArrayLike,
    rng: np.random.Generator,
    resamples: int = 2_000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Stratified bootstrap confidence interval of a statistic, by the percentile method.

    A resample draws, for each task on its own, as many runs as there are, with replacement; several score arrays are
    resampled independently. The bounds are the (1 - confidence) / 2 and (1 + confidence) / 2 quantiles of the statistic
    over all resamples.

    Args:
        statistic: function of as many arrays [runs, tasks] as `scores` has, such as `interquartile_mean`.
        scores: scores [runs, tasks] or [runs], each.
        rng: source of the resamples; the same seed gives the same interval.
        resamples: number of resamples.
        confidence: coverage, between 0 and 1.

    Returns:
        The lower and the upper bound.

    Raises:
        ValueError: `resamples` or `confidence` is out of range, there are no scores, or some are not finite.
    """
    if resamples < 1 or not 0 < confidence < 1:
        raise ValueError(f"needs resamples >= 1 and 0 < confidence < 1, not {resamples} and {confidence}")
    matrices = [_matrix(one) for one in scores]
    values = [statistic(*(_resample(matrix, rng) for matrix in matrices)) for _ in range(resamples)]
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def interquartile_curve(
    curves: ArrayLike, *, seed: int = 0, resamples: int = 500, confidence: float = 0.95
) -> tuple[Scores, Scores, Scores]:
    """Interquartile mean of several runs at every point of a curve, with its bootstrap interval.

    A resample draws whole curves, so that neighboring points of the interval belong to the same resamples.

    Args:
        curves: values [runs, points].
        seed: of the resamples.
        resamples: number of resamples.
        confidence: coverage, between 0 and 1.

    Returns:
        The IQM and the lower and upper bounds, [points] each. Of one run all three are its values.

    Raises:
        ValueError: there are no runs, or some values are not finite.
    """
    values = _matrix(curves)
    drawn = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    resampled = np.stack([_middle(values[rows]) for rows in drawn])  # [resamples, points]
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return _middle(values), low, high


def _middle(values: Scores) -> Scores:
    """IQM over runs at every point: [runs, points] -> [points]."""
    cut = len(values) // 4
    middle: Scores = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return middle


def _resample(scores: Scores, rng: np.random.Generator) -> Scores:
    """Resample runs with replacement within each task, [runs, tasks]."""
    drawn = rng.integers(len(scores), size=scores.shape)
    return np.take_along_axis(scores, drawn, axis=0)


def _matrix(scores: ArrayLike) -> Scores:
    """Convert scores to float64 [runs, tasks]."""
    matrix = np.asarray(scores, np.float64)
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"scores must be [runs, tasks] or [runs] with at least one run, not {list(matrix.shape)}")
    if not np.isfinite(matrix).all():
        raise ValueError("scores must be finite")
    return matrix
