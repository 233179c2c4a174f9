"""Faults of envs are reported with the env's id, what it did, its index, and its own traceback."""

import pickle
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv
from support.faulty_env import Faulty

from starling import tree
from starling.config.env import EnvConfig
from starling.envs.faults import EnvFault
from starling.envs.registry import make_env, register_env
from starling.envs.vector import MOST_DROPPED, VectorEnv
from starling.envs.watch import LOOK_EVERY, LOOKS, BoundsWatch, RewardCheck
from starling.errors import UserError

VECTOR = spaces.Box(-10, 10, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (1, 2, 2), np.uint8)
NESTED = spaces.Dict(image=IMAGE, pair=spaces.Tuple([VECTOR, spaces.Discrete(3, start=1)]))
GOOD = {"image": np.zeros((1, 2, 2), np.uint8), "pair": (np.zeros(4, np.float32), 2)}


class Scripted(gymnasium.Env):
    """Returns `answer` at every step, or calls it if it is a function."""

    def __init__(self, answer, space=VECTOR, start=None):
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._answer, self._start = answer, start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return (self.observation_space.sample(), {}) if self._start is None else self._start()

    def step(self, action):
        return self._answer() if callable(self._answer) else self._answer


def outcome(obs, reward=0.0, end=False):
    return obs, reward, end, False, {}


def divide():
    return 1 / 0


def exit_process():
    sys.exit()


def faulty_env_2(answer, space=VECTOR, start=None):
    """Three envs, of which only the last has the fault."""
    good = outcome(GOOD if space is NESTED else np.zeros(space.shape, space.dtype), end=start is not None)
    envs = [lambda: Scripted(good, space)] * 2 + [lambda: Scripted(answer, space, start)]
    return VectorEnv(SyncVectorEnv(envs, copy=False), "mine/Env-v0")


def play(env, steps=1):
    """A reset and some steps; returns the last step."""
    step = env.reset(np.arange(env.num))
    for _ in range(steps):
        step = env.step(np.zeros(env.num, np.int64))
    return step


def fault(env, steps=1):
    with pytest.raises(EnvFault) as caught:
        play(env, steps)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "space", "what"),
    [
        (divide, VECTOR, "raised in step: ZeroDivisionError: division by zero"),
        (exit_process, VECTOR, "raised in step: SystemExit"),
        (outcome(np.zeros(5, np.float32)), VECTOR, "gave an observation of shape (5,), not (4,) as its space says"),
        (outcome(np.zeros(1, np.float32)), VECTOR, "gave an observation of shape (1,), not (4,) as its space says"),
        (outcome(0.5), VECTOR, "gave an observation of shape (), not (4,) as its space says"),
        (outcome(None), VECTOR, "gave an observation of shape (), not (4,) as its space says"),
        (outcome([[1.0], 2.0]), VECTOR, "gave an observation that is not an array"),
        (outcome(np.zeros(4, complex)), VECTOR, "gave an observation of dtype complex128, not float32"),
        (outcome(np.zeros((1, 2, 2))), IMAGE, "gave an observation of dtype float64, not uint8 as its space says"),
        (outcome(np.full((1, 2, 2), 300)), IMAGE, "gave an observation of dtype int64, not uint8 as its space says"),
        (outcome(np.zeros(4), "much"), VECTOR, "gave unusable values from step: ValueError: could not convert"),
        ((np.zeros(4), 0.0, False, {}), VECTOR, "gave unusable values from step: ValueError: not enough values"),
        ((np.zeros(4), 0.0, False, False, None), VECTOR, "gave unusable values from step: AttributeError"),
        (outcome(np.zeros(4)), NESTED, "gave an observation that is not a dict of image, pair as its space says"),
        (outcome({"image": 1}), NESTED, "gave an observation that is not a dict of image, pair as its space says"),
        (outcome({**GOOD, "pair": (1,)}), NESTED, "gave an observation that is not a tuple of 2 as its space says"),
        (outcome({**GOOD, "pair": (np.zeros(3), 1)}), NESTED, "gave an observation 'pair/0' of shape (3,), not (4,)"),
        (outcome({**GOOD, "pair": (np.zeros(4), 0)}), NESTED, "gave 0 in its observation 'pair/1', which is not in"),
        (outcome({**GOOD, "pair": (np.zeros(4), 4)}), NESTED, "gave 4 in its observation 'pair/1', which is not in"),
    ],
)
def test_invalid_steps_are_faults(answer, space, what):
    env_fault = fault(faulty_env_2(answer, space))
    assert str(env_fault).startswith(f"env 'mine/Env-v0' {what}")
    assert str(env_fault).endswith(" (env 2)")
    assert env_fault.index == 2


WIDE = spaces.Box(-np.inf, np.inf, (4,), np.float64)


@pytest.mark.parametrize(
    ("answer", "space", "what"),
    [
        (outcome(np.array([0, 0, np.nan, 0])), VECTOR, "gave NaN in its observation"),
        (outcome(np.array([0, np.inf, 0, -np.inf])), VECTOR, "gave inf in its observation"),
        (outcome(np.full(4, 1e39)), WIDE, "gave inf in its observation"),  # inf when converted to float32
        (outcome(np.zeros(4), np.nan), VECTOR, "gave NaN in its reward"),
        (outcome(np.zeros(4), -np.inf, end=True), VECTOR, "gave inf in its reward"),
        (outcome({**GOOD, "pair": (np.full(4, np.nan), 1)}), NESTED, "gave NaN in its observation 'pair/0'"),
    ],
)
def test_episode_with_non_finite_values_is_dropped_and_its_env_reset(answer, space, what):
    env = faulty_env_2(answer, space)
    step = play(env)
    assert env.dropped.tolist() == step.first.tolist() == [False, False, True]
    assert step.valid.tolist() == [True, True, False]
    assert not (step.terminated | step.truncated | env.game_over).any()
    assert step.reward.tolist() == [0, 0, 0]
    assert all(np.isfinite(leaf).all() for leaf in tree.leaves(step.obs))
    assert [str(drop) for drop in env.drops] == [f"env 'mine/Env-v0' {what} (env 2)"]
    env_fault = fault(env, steps=MOST_DROPPED + 1)
    assert env_fault.what == f"{what}, in {MOST_DROPPED} consecutive episodes"
    assert env_fault.index == 2


def test_non_finite_values_in_several_envs_drop_all_their_episodes():
    faulty = [lambda: Scripted(outcome(np.full(4, np.nan))), lambda: Scripted(outcome(np.zeros(4), np.inf))]
    env = VectorEnv(SyncVectorEnv([*faulty, lambda: Scripted(outcome(np.zeros(4)))], copy=False), "mine/Env-v0")
    step = play(env)
    assert step.valid.tolist() == [False, False, True]
    assert [drop.index for drop in env.drops] == [0, 1]


def test_completed_episodes_reset_the_count_of_dropped_ones():
    answers = iter([outcome(np.full(4, np.nan)), outcome(np.zeros(4), end=True)] * (MOST_DROPPED + 5))
    env = VectorEnv(SyncVectorEnv([lambda: Scripted(lambda: next(answers))], copy=False), "mine/Env-v0")
    play(env, steps=3 * MOST_DROPPED)  # each cycle is a step, a reset, and a dropped step
    assert len(env.drops) == MOST_DROPPED


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (divide, "raised in reset: ZeroDivisionError: division by zero"),
        (lambda: (np.zeros(5), {}), "gave an observation of shape (5,), not (4,)"),
        (lambda: (np.full(4, np.nan), {}), "gave NaN in its observation"),
        (lambda: np.zeros(4), "gave unusable values from reset: ValueError: too many values"),
    ],
)
def test_invalid_resets_are_faults(start, what):
    env_fault = fault(faulty_env_2(outcome(np.zeros(4)), start=start), steps=0)
    assert env_fault.what.startswith(what)
    assert env_fault.index == 2


def test_fault_names_the_env_that_was_being_reset():
    good = outcome(np.zeros(4))
    envs = [lambda: Scripted(good, start=lambda: (np.zeros(4), None)), lambda: Scripted(good)]
    env_fault = fault(VectorEnv(SyncVectorEnv(envs), "vector"), steps=0)
    assert env_fault.what.startswith("gave unusable values from reset: AttributeError")
    assert env_fault.index == 0


def test_fault_in_an_autoreset_is_reported_as_reset():
    resets = []

    def only_once():
        resets.append(True)
        return (np.zeros(4), {}) if len(resets) == 1 else divide()

    env_fault = fault(faulty_env_2(outcome(np.zeros(4), end=True), start=only_once), steps=2)
    assert env_fault.what.startswith("raised in reset: ZeroDivisionError")
    assert env_fault.index == 2


def test_traceback_has_only_frames_of_the_env():
    env_fault = fault(faulty_env_2(divide))
    assert isinstance(env_fault.__cause__, ZeroDivisionError)
    first, *_, last = env_fault.details.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "ZeroDivisionError: division by zero"
    assert "return 1 / 0" in env_fault.details
    assert "in divide" in env_fault.details
    assert "starling/envs/vector.py" not in env_fault.details
    assert "sync_vector_env.py" not in env_fault.details


def test_fault_can_be_pickled():
    env_fault = fault(faulty_env_2(divide))
    copy = pickle.loads(pickle.dumps(env_fault))
    assert (type(copy), str(copy), copy.index, copy.details) == (EnvFault, str(env_fault), 2, env_fault.details)


def test_long_message_is_shortened_to_one_line():
    def raise_long_message():
        raise ValueError("line\n" * 500)

    env_fault = fault(faulty_env_2(raise_long_message))
    assert len(str(env_fault)) < 400
    assert len(env_fault.details) > 2000


def test_user_errors_in_an_env_are_passed_on_unchanged():
    def refuse():
        raise UserError("set env.args.level")

    for env in (faulty_env_2(refuse), faulty_env_2(outcome(np.zeros(4)), start=refuse)):
        with pytest.raises(UserError, match=r"^set env.args.level$"):
            play(env)


def test_ctrl_c_within_an_env_is_not_a_fault():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(faulty_env_2(interrupt))


@pytest.mark.parametrize(
    "obs",
    [
        np.full(4, 1e30, np.float32),  # their squares overflow float32
        np.full(4, 3e38, np.float32),
        np.zeros(4, np.float64),
        np.zeros(4, np.int64),
        [0, 1, 2, 3],
    ],
)
def test_large_numbers_and_convertible_types_are_not_faults(obs):
    step = play(faulty_env_2(outcome(obs, reward=1e30)))
    np.testing.assert_array_equal(step.obs[2], np.asarray(obs, np.float32))


def envs_with_rewards(*rewards):
    """Envs that give these rewards, built as in the registry."""
    envs = [partial(RewardCheck, "mine/Env-v0", Scripted(outcome(np.zeros(4), reward))) for reward in rewards]
    return VectorEnv(SyncVectorEnv(envs, copy=False), "mine/Env-v0")


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ("1.5", "'1.5', a str"),
        ("much", "'much', a str"),
        (np.str_("2"), "np.str_('2'), a str_"),
        (b"2", "b'2', a bytes"),
        (None, "None, a NoneType"),
        ({"goal": 1.0}, "{'goal': 1.0}, a dict"),
        (np.ones(2), "array([1., 1.]), a ndarray"),
    ],
)
def test_non_numeric_reward_is_a_fault_even_if_numpy_could_convert_it(reward, named):
    env_fault = fault(envs_with_rewards(0.5, 0.5, reward))
    assert str(env_fault) == f"env 'mine/Env-v0' gave the reward {named}, which is not a number (env 2)"
    assert not env_fault.details


@pytest.mark.parametrize("reward", [True, 3, np.float32(3), np.int8(3), np.bool_(True), np.array(3.0)])
def test_rewards_of_any_numeric_type_are_accepted(reward):
    assert play(envs_with_rewards(0.5, reward)).reward.tolist() == [0.5, float(reward)]


UNEVEN = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([3, 10], np.float32))
BOUNDED = spaces.Dict(
    image=IMAGE,
    grid=spaces.Box(0, 1, (2,), np.uint8),
    pair=spaces.Tuple([UNEVEN, spaces.Discrete(3)]),
)
INSIDE = {"image": np.full((2, 1, 2, 2), 255, np.uint8), "grid": np.ones((2, 2), np.uint8)}


def seen(*pair, grid=1):
    """Observations of two envs, of which the second has these values."""
    pairs = np.array([[0, 0], pair], np.float32)
    return {**INSIDE, "grid": np.array([[0, 1], [0, grid]], np.uint8), "pair": (pairs, np.zeros(2, np.int64))}


@pytest.mark.parametrize(
    ("obs", "what"),
    [
        (seen(3.2, 0), "gave 3.2 in its observation 'pair/0', where its space has -1 to 3"),
        (seen(-1.5, 0), "gave -1.5 in its observation 'pair/0', where its space has -1 to 3"),
        (seen(0, 1e6), "gave 1e+06 in its observation 'pair/0', where its space has -inf to 10"),
        (seen(0, 0, grid=7), "gave 7 in its observation 'grid', where its space has 0 to 1"),
    ],
)
def test_observation_out_of_bounds_is_reported_once(obs, what):
    watch = BoundsWatch("mine", BOUNDED)
    for inside in (seen(3, 10), seen(-1.03, -1e30), seen(3.03, 0)):  # up to a hundredth of the range counts as rounding
        assert watch.look(inside) is None
    assert watch.look(obs) == (what, 1)
    assert watch.look(obs) is None


def test_bounds_are_checked_often_at_first_and_rarely_later():
    watch = BoundsWatch("mine", VECTOR)
    for _ in range(LOOKS):
        assert watch.look(np.zeros((2, 4), np.float32)) is None
    steps = 1
    while watch.look(np.full((2, 4), 11, np.float32)) is None:
        steps += 1
    assert steps == LOOK_EVERY


@pytest.mark.parametrize("space", [IMAGE, spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(5)])
def test_bounds_implied_by_the_dtype_are_not_checked(space):
    assert not BoundsWatch("mine", space)._bounds


class ScriptedVectorEnv(GymVectorEnv):
    """A vector env of two envs that returns what `step` gives."""

    def __init__(self, step, space=VECTOR):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = 2
        self.single_observation_space, self.single_action_space = space, spaces.Discrete(2)
        self._step = step

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, *self.single_observation_space.shape), self.single_observation_space.dtype), {}

    def step(self, actions):
        return self._step()


NO = np.zeros(2, np.bool_)
ZEROS = np.zeros((2, 4), np.float32)
REWARD = np.zeros(2)


def give(obs=ZEROS, reward=REWARD, terminated=NO):
    return lambda: (obs, reward, terminated, NO, {})


@pytest.mark.parametrize(
    ("step", "space", "message"),
    [
        (divide, VECTOR, "raised in step: ZeroDivisionError: division by zero"),
        (lambda: (ZEROS, REWARD, NO, {}), VECTOR, "gave unusable values from step: ValueError: not enough"),
        (give(np.zeros((2, 5))), VECTOR, "gave an observation of shape (2, 5), not (2, 4)"),
        (give(np.zeros((1, 4))), VECTOR, "gave an observation of shape (1, 4), not (2, 4)"),
        (give(np.zeros((2, 1, 2, 2))), IMAGE, "gave an observation of dtype float64"),
        (give(reward=np.zeros((2, 1))), VECTOR, "gave rewards, terminated and truncated of shapes (2, 1)"),
        (give(reward=1.0), VECTOR, "gave rewards, terminated and truncated of shapes ()"),
        (give(terminated=NO[:1]), VECTOR, "gave rewards, terminated and truncated of shapes (2,), (1,)"),
        (give(reward=np.array(["0", "1"])), VECTOR, "gave the reward '0', a str, which is not a number (env 0)"),
        (give(reward=np.array([0.5, None])), VECTOR, "gave the reward None, a NoneType, which is not a number (env 1)"),
        (give(reward=np.array([0, np.nan])), VECTOR, "gave NaN in its reward (env 1)"),
        (give(ZEROS + np.array([[0], [np.inf]])), VECTOR, "gave inf in its observation (env 1)"),
    ],
)
def test_native_vector_envs_are_checked_too(step, space, message):
    env_fault = fault(VectorEnv(ScriptedVectorEnv(step, space), "vector"))
    assert str(env_fault).startswith(f"env 'vector' {message}")


class UnimplementedVectorEnv(ScriptedVectorEnv):
    """An env whose error has no stack frame of its own."""

    step = GymVectorEnv.step


def test_error_without_a_frame_of_the_env_is_still_its_fault():
    assert str(fault(VectorEnv(UnimplementedVectorEnv(None), "vector"))).startswith(
        "env 'vector' raised in step: NotImplementedError"
    )


def test_fault_in_construction_names_the_env():
    made = []

    def third_fails():
        made.append(True)
        return Scripted(outcome(np.zeros(4))) if len(made) < 3 else divide()

    register_env("faults/third", third_fails)
    with pytest.raises(EnvFault) as caught:
        make_env(EnvConfig(id="faults/third"), 4)
    assert str(caught.value) == (
        "env 'faults/third' raised in construction: ZeroDivisionError: division by zero (env 2)"
    )
    assert "in divide" in caught.value.details
    assert "registry.py" not in caught.value.details


def test_fault_in_close_is_only_a_warning(caplog):
    env = faulty_env_2(outcome(np.zeros(4)))
    env._env.envs[0].close = divide
    env.close()
    assert caplog.messages == ["env 'mine/Env-v0' raised in close: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise_step", "raised in step: RuntimeError: told to raise in step (env 0)"),
        ("raise_reset", "raised in reset: RuntimeError: told to raise in reset (env 0)"),
        ("shape", "gave an observation of shape (5,), not (4,) as its space says (env 0)"),
    ],
)
def test_faulty_env_fails_after_its_good_steps_and_only_once_if_configured(tmp_path, what, message):
    config = EnvConfig(
        id="support.faulty_env:Faulty", args={"what": what, "when": 5, "length": 3, "once": str(tmp_path / "done")}
    )
    play(make_env(config, 2), 7 if what == "raise_reset" else 6)  # five steps and a reset, or six until the next reset
    assert str(fault(make_env(config, 2), 8)) == f"env 'support.faulty_env:Faulty' {message}"
    play(make_env(config, 2), 20)


@pytest.mark.parametrize("what", ["nan_obs", "nan_reward", "inf_reward"])
def test_faulty_env_gives_a_non_finite_value_once(tmp_path, what):
    config = EnvConfig(
        id="support.faulty_env:Faulty", args={"what": what, "when": 5, "length": 3, "once": str(tmp_path / "done")}
    )
    env = make_env(config, 2)
    play(env, 20)
    assert [drop.index for drop in env.drops] == [0]


def test_faulty_env_fails_in_construction_and_rejects_unknown_faults(tmp_path):
    args = {"what": "raise_construct", "once": str(tmp_path / "done")}
    with pytest.raises(EnvFault, match=r"raised in construction: RuntimeError: told to raise .*\(env 0\)"):
        make_env(EnvConfig(id="support.faulty_env:Faulty", args=args), 2)
    make_env(EnvConfig(id="support.faulty_env:Faulty", args=args), 2)
    with pytest.raises(UserError, match=r"what must be raise_step, .*not 'explode'"):
        Faulty("explode")
