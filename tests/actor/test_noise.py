"""Noise is a pure function of (seed, row, step), uniform, and never 0 or 1."""

import numpy as np
from scipy import stats

from starling.actor import noise


def test_a_row_gets_the_same_noise_whatever_shares_its_batch():
    rows = np.arange(10)
    together = noise.Noise(7, rows).uniform(step=5, n=3)
    alone = [noise.Noise(7, rows[i : i + 1]).uniform(step=5, n=3)[0] for i in rows]
    assert (together == np.stack(alone)).all()


def test_the_order_of_asking_does_not_matter():
    asked = noise.Noise(7, np.arange(4))
    forward = [asked.uniform(step, n=2) for step in range(200)]
    for step in (199, 3, 64, 63, 0):
        assert (noise.Noise(7, np.arange(4)).uniform(step, n=2) == forward[step]).all()
        assert (asked.uniform(step, n=2) == forward[step]).all()


def test_seed_row_step_and_index_each_matter():
    one = noise.Noise(0, np.arange(50))
    drawn = np.concatenate([one.uniform(step, 4).ravel() for step in range(200)])
    assert len(np.unique(drawn)) > 0.99 * len(drawn)
    assert (noise.Noise(1, np.arange(50)).uniform(0, 4) != one.uniform(0, 4)).any()


def test_it_is_uniform_and_uncorrelated_over_steps_and_rows():
    drawn = noise.Noise(3, np.arange(64))
    x = np.stack([drawn.uniform(step, 1)[:, 0] for step in range(2000)])  # [steps, rows]
    assert stats.kstest(x.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01


def test_the_ends_are_open():
    assert noise._open_interval(np.full(1, 2**64 - 1, np.uint64))[0] < 1
    assert noise._open_interval(np.zeros(1, np.uint64))[0] > 0
    x = noise.Noise(0, np.arange(1000)).uniform(0, 200)
    assert x.dtype == np.float32
    assert x.min() > 0
    assert x.max() < 1


def test_env_seeds_fit_an_int32_and_differ():
    seeds = noise.seeds(0, np.arange(1000), step=12)
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert len(np.unique(seeds)) == 1000
