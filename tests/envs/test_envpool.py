"""envpool as a backend; `make test-envpool` installs it, elsewhere only the error without it is tested."""

import importlib.util

import numpy as np
import pytest

import starling
from starling.config.env import EnvConfig
from starling.envs.registry import make_env
from starling.errors import UserError

installed = importlib.util.find_spec("envpool") is not None
needs_envpool = pytest.mark.skipif(not installed, reason="envpool is not installed")


@pytest.mark.skipif(installed, reason="envpool is installed")
def test_without_envpool_the_error_says_how_to_install_it():
    with pytest.raises(UserError, match=r"envpool/CartPole-v1' needs .* envpool: pip install 'starling-rl\[envpool\]'"):
        make_env(EnvConfig(id="envpool/CartPole-v1"), 2)


@needs_envpool
def test_env_depends_only_on_its_own_seed_and_resets_after_its_end():
    batched, single = (make_env(EnvConfig(id="envpool/CartPole-v1"), num_envs) for num_envs in (3, 1))
    steps, one = batched.reset(np.array([5, 2**40, 7])), single.reset(np.array([2**40]))
    seen = []
    for _ in range(40):
        np.testing.assert_array_equal(steps.obs[1], one.obs[0])
        seen.append((bool(steps.terminated[1]), bool(steps.first[1])))
        steps, one = batched.step(np.ones(3, np.int64)), single.step(np.ones(1, np.int64))
    ends = [i for i, (ended, _) in enumerate(seen) if ended]
    assert 3 <= len(ends) <= 5
    assert all(seen[i + 1] == (False, True) for i in ends)


@needs_envpool
def test_stagger_truncates_each_env_separately():
    env = make_env(EnvConfig(id="envpool/HalfCheetah-v4"), 2)
    env.reset(np.array([1, 2]))
    env.stagger(np.array([3, 1000]))
    steps = [env.step(np.zeros((2, 6), np.float32)) for _ in range(5)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True, False, False]
    assert steps[3].first.tolist() == [True, False]
    assert not steps[3].valid[0]


@needs_envpool
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "envpool/CartPole-v2"}, "envpool has no env 'CartPole-v2'.*CartPole-v1"),
        ({"id": "envpool/CartPole-v1", "args": {"seed": 3}}, "env.args.seed is set by the run; remove it"),
        ({"id": "envpool/CartPole-v1", "args": {"nonsense": 3}}, "does not accept env.args"),
        ({"id": "envpool/CartPole-v1", "vectorize": "sync"}, "is a vector env: it takes no wrappers"),
    ],
)
def test_env_that_cannot_be_made_is_a_one_line_error(settings, message):
    with pytest.raises(UserError, match=message):
        make_env(EnvConfig(**settings), 2)


@needs_envpool
def test_envpool_trains_in_worker_processes(tmp_path):
    settings = ["env.id=envpool/CartPole-v1", "runtime=processes", "actors=2", "stop={env_steps: 4000}"]
    result = starling.train("ppo-cartpole", settings, runs=tmp_path)
    assert result.env_steps >= 4000
