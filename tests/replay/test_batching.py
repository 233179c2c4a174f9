"""Each way to select from candidates compared with a slow version that reads like its description."""

import numpy as np
import pytest

from starling.replay.batching import choose


def by_distance(distances):
    return sorted(range(len(distances)), key=lambda i: distances[i])


def slow_nearest(distances, uses, n):
    return by_distance(distances)[:n]


def slow_spread(distances, uses, n):
    ranking = by_distance(distances)
    return [ranking[i * len(ranking) // n] for i in range(n)]


def slow_least_sampled(distances, uses, n):
    return sorted(range(len(uses)), key=lambda i: (uses[i], distances[i]))[:n]


def slow_grouped(distances, uses, n):
    ranking = by_distance(distances)
    groups = [[] for _ in range(n)]
    for rank, i in enumerate(ranking):
        groups[rank * n // len(ranking)].append(i)
    return [min(group, key=lambda i: uses[i]) for group in groups]


SLOW = {
    "nearest": slow_nearest,
    "spread": slow_spread,
    "least_sampled": slow_least_sampled,
    "grouped": slow_grouped,
}


@pytest.mark.parametrize("selection", SLOW)
@pytest.mark.parametrize(("total", "n"), [(1, 1), (12, 2), (96, 16), (16, 16), (37, 5), (20, 7)])
def test_selection_matches_the_slow_reference(selection, total, n):
    random = np.random.default_rng(total + n)
    for _ in range(20):
        distances, uses = random.integers(0, 8, total) / 8, random.integers(0, 3, total)  # with ties in both
        chosen = choose(selection, distances, uses, n)
        assert chosen.tolist() == SLOW[selection](distances, uses, n)
        assert len(set(chosen.tolist())) == n


def test_selections_on_an_example():
    distances, uses = np.array([0.5, 0.1, 0.9, 0.3]), np.array([0, 2, 1, 3])  # the ranking is 1, 3, 0, 2
    picks = {selection: choose(selection, distances, uses, 2).tolist() for selection in SLOW}
    assert picks == {"nearest": [1, 3], "spread": [1, 0], "least_sampled": [0, 2], "grouped": [1, 0]}
