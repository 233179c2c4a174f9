"""Noise is a pure function of (seed, row, step), uniform, and never 0 or 1."""

import numpy as np
from scipy import stats

from starling.roles import noise


def test_a_row_gets_the_same_noise_whatever_shares_its_batch():
    rows = np.arange(10)
    together = noise.uniform(noise.streams(7, rows), step=5, n=3)
    alone = [noise.uniform(noise.streams(7, rows[i : i + 1]), step=5, n=3)[0] for i in rows]
    assert (together == np.stack(alone)).all()


def test_seed_row_step_and_index_each_matter():
    stream = noise.streams(0, np.arange(50))
    drawn = np.concatenate([noise.uniform(stream, step, 4).ravel() for step in range(50)])
    assert len(np.unique(drawn)) > 0.99 * len(drawn)
    assert (noise.uniform(noise.streams(1, np.arange(50)), 0, 4) != noise.uniform(stream, 0, 4)).any()


def test_it_is_uniform_and_uncorrelated_over_steps_and_rows():
    stream = noise.streams(3, np.arange(64))
    x = np.stack([noise.uniform(stream, step, 1)[:, 0] for step in range(2000)])  # [steps, rows]
    assert stats.kstest(x.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01


def test_the_ends_are_open():
    highest = np.full(1, 2**64 - 1, np.uint64) >> np.uint64(41)
    top = (highest.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    assert top[0] < 1
    x = noise.uniform(noise.streams(0, np.arange(1000)), 0, 1000)
    assert x.dtype == np.float32
    assert x.min() > 0
    assert x.max() < 1


def test_env_seeds_fit_an_int32_and_differ():
    seeds = noise.seeds(0, np.arange(1000), step=12)
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    assert len(np.unique(seeds)) == 1000
