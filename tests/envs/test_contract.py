"""The contract of every backend: shapes, NEXT_STEP resets, and a future that depends only on seeds and actions."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from starling import tree
from starling.config.env import EnvConfig
from starling.envs.registry import make_env
from starling.envs.spaces import observation_layout, policy_space

NUM_ENVS = 2
SEEDS = np.array([11, 2**40 + 5])
STEPS = 70
LIMIT = [{"name": "TimeLimit", "args": {"max_episode_steps": 9}}]
SHORT_GAME = {"max_frames": 80, "sticky": 0.25}
EPISODIC_LIFE = {"episodic_life": True, "sticky": 0.25, "fire_reset": True, "noop_max": 3}
MINATAR = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]
TOYS = ["identity", "memory", "truncation", "counting", "dict", "deep-sea", "rooms"]

MARIO = ["mario"] if find_spec("nes_py") else []  # `make install` builds it with g++

BACKENDS = {
    "cartpole-vector": EnvConfig(id="CartPole-v1"),
    "cartpole-sync": EnvConfig(id="CartPole-v1", vectorize="sync"),
    "cartpole-stack": EnvConfig(
        id="CartPole-v1", wrappers=[{"name": "FrameStackObservation", "args": {"stack_size": 3}}]
    ),
    "pendulum": EnvConfig(id="Pendulum-v1", args={"max_episode_steps": 20}),
    "pong": EnvConfig(id="ALE/Pong-v5", atari=SHORT_GAME),
    "breakout-lives": EnvConfig(id="ALE/Breakout-v5", atari=EPISODIC_LIFE),
    "breakout-lives-sync": EnvConfig(id="ALE/Breakout-v5", atari=EPISODIC_LIFE, vectorize="sync"),
    **{f"minatar-{name}": EnvConfig(id=f"MinAtar/{name}-v1", wrappers=LIMIT) for name in MINATAR},
    "minatar-hidden": EnvConfig(id="MinAtar/Breakout-v1", wrappers=[{"name": "HideFrames"}]),
    "minatar-bare": EnvConfig(id="MinAtar/Breakout-v0"),
    **dict.fromkeys(
        MARIO, EnvConfig(id="SuperMarioBros-1-1-v0", args={"frame_skip": 1, "noop_max": 40}, wrappers=LIMIT)
    ),
    **{f"toy-{name}": EnvConfig(id=f"toy/{name}") for name in TOYS if name != "rooms"},
    "toy-rooms": EnvConfig(id="toy/rooms", args={"limit": 20}),
}

JOINT = {"cartpole-vector"}  # one generator for all envs
FIXED = {"toy-deep-sea", "toy-rooms"}  # nothing is random
SILENT = {"toy-truncation"}  # observations do not show the randomness


@pytest.fixture(scope="module", params=BACKENDS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def env(name):
    env = make_env(BACKENDS[name], NUM_ENVS)
    yield env
    env.close()


@pytest.fixture(scope="module")
def acts(env):
    """Random actions [steps, B, ...] that the env accepts."""
    rng = np.random.default_rng(2)
    layout = observation_layout(policy_space(env.spec.action))
    shape = (STEPS, env.num, *layout.shape)
    if layout.dtype.kind == "f":
        return rng.uniform(env.spec.action.low, env.spec.action.high, shape).astype(layout.dtype)
    return rng.integers(env.spec.action.n, size=shape)


def play(env, seeds, acts):
    """All steps of a reset and of `acts`: copied at once, and as they were returned."""
    copies, returned = [], []
    for act in [None, *acts]:
        returned.append(env.reset(seeds) if act is None else env.step(act))
        copies.append(tree.map(np.copy, returned[-1]))
    return copies, returned


@pytest.fixture(scope="module")
def played(env, acts):
    return play(env, SEEDS, acts)


@pytest.fixture(scope="module")
def steps(played):
    return played[0]


def ends(steps):
    return np.array([step.terminated | step.truncated for step in steps])  # [T+1, B]


def assert_same(one, other, env_slice=slice(None)):
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        for (path, x), (_, y) in zip(tree.items(a), tree.items(b), strict=True):
            np.testing.assert_array_equal(x[env_slice], y[env_slice], err_msg=f"step {t}, {path}")


def test_arrays_match_the_spec(env, steps):
    layout = observation_layout(env.spec.observation)
    flags = {"first": "?", "terminated": "?", "truncated": "?", "valid": "?", "reward": "f4"}
    for step in steps[::7]:
        assert tree.spec(step.obs, lead=1) == layout
        assert {len(leaf) for leaf in tree.leaves(step.obs)} == {NUM_ENVS}
        for i in range(NUM_ENVS):
            assert env.spec.observation.contains(tree.map(lambda leaf, i=i: leaf[i], step.obs))
        for name, dtype in flags.items():
            array = getattr(step, name)
            assert (array.shape, array.dtype) == ((NUM_ENVS,), np.dtype(dtype)), name


def test_env_is_reset_in_the_step_after_an_end(steps):
    ended = ends(steps)
    assert ended.sum() >= 2
    assert steps[0].first.all()
    assert not np.any([steps[0].valid, steps[0].reward, ended[0]])
    for t, step in enumerate(steps[1:], 1):
        np.testing.assert_array_equal(step.first, ended[t - 1])
        np.testing.assert_array_equal(step.valid, ~ended[t - 1])
        assert not (step.terminated & step.truncated).any()
        assert not step.reward[step.first].any()
        assert not ended[t][step.first].any()


def test_only_observations_are_reused_buffers(played):
    copies, returned = played
    assert_same([replace(step, obs=None) for step in copies], [replace(step, obs=None) for step in returned])


def test_steps_depend_only_on_seeds_and_actions(env, acts, steps):
    ended = ends(steps)
    assert (ended.sum(axis=0) >= 2).any()
    end = int(ended.any(axis=1).argmax())
    play(env, SEEDS, acts[:end])  # stops before a reset,
    again, _ = play(env, SEEDS, acts[: end + 3])  # and here within an episode
    assert_same(steps[: end + 4], again)
    assert_same(steps, play(env, SEEDS, acts)[0])


def test_another_instance_gives_the_same_steps_and_ignores_actions_at_resets(name, env, acts, steps):
    fresh = make_env(BACKENDS[name], NUM_ENVS)
    assert fresh.spec == env.spec
    resets = np.array([step.first for step in steps[1:]])
    changed = acts.copy()
    changed[resets] = acts[::-1][resets]
    assert (changed != acts).any()
    assert_same(steps, play(fresh, SEEDS, changed)[0])
    fresh.close()


def test_env_depends_only_on_its_own_seed(name, env, acts, steps):
    other, _ = play(env, SEEDS + np.array([0, 9]), acts)
    if name not in JOINT:
        assert_same(steps, other, env_slice=slice(0, 1))
    if name not in FIXED | SILENT:
        pairs = [(tree.leaves(a.obs), tree.leaves(b.obs)) for a, b in zip(steps, other, strict=True)]
        assert any((x[1] != y[1]).any() for these, those in pairs for x, y in zip(these, those, strict=True))
    if name in SILENT:
        assert (ends(steps) != ends(other)).any()


@pytest.mark.parametrize("seeds", [np.array([1, 2, 3]), np.array([1, -2])])
def test_one_non_negative_seed_per_env_is_required(seeds):
    env = make_env(EnvConfig(id="CartPole-v1"), NUM_ENVS)
    with pytest.raises(ValueError, match="2 integers of at least 0"):
        env.reset(seeds)
