"""Noise is a pure function of (seed, env index, step), uniform, and never 0 or 1."""

import numpy as np
from scipy import stats

from starling.actor import noise


def test_noise_of_an_env_is_independent_of_its_batch():
    env_index = np.arange(10)
    batched = noise.Noise(7, env_index).uniform(step=5, n=3)
    separate = [noise.Noise(7, env_index[i : i + 1]).uniform(step=5, n=3)[0] for i in env_index]
    assert (batched == np.stack(separate)).all()


def test_noise_does_not_depend_on_the_order_of_calls():
    asked = noise.Noise(7, np.arange(4))
    forward = [asked.uniform(step, n=2) for step in range(200)]
    for step in (199, 3, 64, 63, 0):
        assert (noise.Noise(7, np.arange(4)).uniform(step, n=2) == forward[step]).all()
        assert (asked.uniform(step, n=2) == forward[step]).all()


def test_noise_depends_on_seed_env_step_and_index():
    one = noise.Noise(0, np.arange(50))
    drawn = np.concatenate([one.uniform(step, 4).ravel() for step in range(200)])
    assert len(np.unique(drawn)) > 0.99 * len(drawn)
    assert (noise.Noise(1, np.arange(50)).uniform(0, 4) != one.uniform(0, 4)).any()


def test_noise_is_uniform_and_uncorrelated_over_steps_and_envs():
    drawn = noise.Noise(3, np.arange(64))
    x = np.stack([drawn.uniform(step, 1)[:, 0] for step in range(2000)])  # [steps, envs]
    assert stats.kstest(x.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01


def test_noise_is_in_the_open_interval_from_0_to_1():
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
