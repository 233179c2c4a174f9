"""The vector env adapter, on a scripted vector env that covers all cases."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv

from starling.envs.toy import Counting, Identity
from starling.envs.vector import GAME_OVER, VectorEnv, infos_of, joint_seed
from starling.errors import UserError


class ScriptedVectorEnv(GymVectorEnv):
    """Two envs that replay a script and record their actions."""

    def __init__(self, script, mode=AutoresetMode.NEXT_STEP):
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-1, 1, (1,), np.float64)
        self.single_action_space = spaces.Discrete(3, start=-1)
        self.script, self.actions_received = list(script), []

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros((2, 1)), {}

    def step(self, actions):
        self.actions_received.append(actions)
        reward, terminated, truncated, infos = self.script.pop(0)
        return np.zeros((2, 1)), np.array(reward), np.array(terminated), np.array(truncated), infos


NO = [False, False]


def test_resets_have_no_reward_and_termination_takes_precedence():
    script = [
        ([1.0, 2.0], [True, False], [True, False], {}),
        ([3.0, 4.0], NO, [False, True], {}),
        ([5.0, 6.0], NO, [False, True], {}),
        ([7.0, 8.0], NO, NO, {}),
        ([9.0, 10.0], NO, NO, {}),
    ]
    env = VectorEnv(ScriptedVectorEnv(script), "vector")
    env.reset(np.array([0, 0]))
    steps = [env.step(np.array([0, 0])) for _ in script]
    # The second env's reset is truncated, too: another reset follows, and neither ends an episode.
    assert [s.reward.tolist() for s in steps] == [[1, 2], [0, 4], [5, 0], [7, 0], [9, 10]]
    assert [s.valid.tolist() for s in steps] == [[True] * 2, [False, True], [True, False], [True, False], [True] * 2]
    assert [s.first.tolist() for s in steps] == [NO, [True, False], [False, True], [False, True], NO]
    assert [s.terminated.tolist() for s in steps] == [[True, False], NO, NO, NO, NO]
    assert [s.truncated.tolist() for s in steps] == [NO, [False, True], NO, NO, NO]


def test_explicit_reset_clears_a_pending_autoreset():
    env = VectorEnv(ScriptedVectorEnv([([1.0, 1.0], [True, True], NO, {}), ([1.0, 1.0], NO, NO, {})]), "vector")
    env.reset(np.array([0, 0]))
    env.step(np.array([0, 0]))
    env.reset(np.array([0, 0]))
    step = env.step(np.array([0, 0]))
    assert step.valid.all()
    assert step.reward.tolist() == [1, 1]


def test_actions_start_at_0_and_are_converted_for_the_env():
    scripted = ScriptedVectorEnv([([0.0, 0.0], NO, NO, {})])
    env = VectorEnv(scripted, "vector")
    assert env.spec.action == spaces.Discrete(3)
    env.reset(np.array([0, 0]))
    step = env.step(np.array([0, 2], np.int32))
    assert scripted.actions_received[0].tolist() == [-1, 1]
    assert step.obs.dtype == np.float32


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED, None])
def test_other_autoreset_modes_are_rejected(mode):
    with pytest.raises(UserError, match=r"env 'vector' has autoreset_mode .*build it with AutoresetMode.NEXT_STEP"):
        VectorEnv(ScriptedVectorEnv([], mode), "vector")


def test_joint_seed_depends_on_all_seeds():
    scripted = ScriptedVectorEnv([])
    VectorEnv(scripted, "vector").reset(np.array([3, 2**62]))
    assert scripted.seed == joint_seed(np.array([3, 2**62]))
    drawn = {joint_seed(np.array(s)) for s in [(1, 2), (2, 1), (1, 3), (0, 0), (2**40, 2)]}
    assert len(drawn) == 5
    assert all(0 <= seed < 2**31 for seed in drawn)


def test_each_single_env_gets_its_own_seed():
    for scripted in (SyncVectorEnv([Counting] * 2), AsyncVectorEnv([Counting] * 2, context="fork")):
        env = VectorEnv(scripted, "counting")
        assert env.reset(np.array([5, 900])).obs[:, 0].tolist() == [5, 900]
        env.close()


def test_infos_of_finished_episodes():
    env = VectorEnv(SyncVectorEnv([Counting] * 2), "counting")
    env.reset(np.array([0, 1]))  # episodes of 1 and 2 steps
    actions = np.zeros(2, np.int64)
    env.step(actions)
    assert env.episode_infos() == {0: {"episode": 0}}
    assert env.game_over.tolist() == [True, False]
    env.step(actions)
    assert env.episode_infos() == {1: {"episode": 0}}
    env.reset(np.array([0, 1]))
    assert env.episode_infos() == {}
    assert not env.game_over.any()


def test_infos_of_one_env_follow_the_masks():
    infos = {
        "a": np.array([1, 2]),
        "_a": np.array([True, False]),
        "deep": {"b": np.array([3.0, 4.0]), "_b": np.array([True, True])},
        "_deep": np.array([True, True]),
        "bare": np.array([5, 6]),
        "_odd": np.array([7, 8]),
    }
    assert infos_of(infos, 0) == {"a": 1, "deep": {"b": 3.0}, "bare": 5, "_odd": 7}
    assert infos_of(infos, 1) == {"deep": {"b": 4.0}, "bare": 6, "_odd": 8}


def test_env_may_report_the_end_of_the_game():
    over = np.array([False, True])
    env = VectorEnv(ScriptedVectorEnv([([0.0, 0.0], [True, True], NO, {GAME_OVER: over})]), "vector")
    env.reset(np.array([0, 0]))
    env.step(np.array([0, 0]))
    assert env.game_over.tolist() == [False, True]


def test_rendering_an_env_without_images_is_an_error():
    env = VectorEnv(SyncVectorEnv([Identity]), "toy/identity")
    env.reset(np.array([0]))
    with pytest.raises(UserError, match="'toy/identity' cannot be rendered: it renders no images"):
        env.render()


class Clock(gymnasium.Env):
    """Observes the number of steps in its episode, and terminates after `length` steps."""

    def __init__(self, length):
        self.observation_space = spaces.Box(0, 99, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time == self.length, False, {}


def clocks(num_envs, length):
    return VectorEnv(SyncVectorEnv([lambda: Clock(length)] * num_envs, copy=False), "clock")


def played(env, steps):
    return [env.step(np.zeros(env.num, np.int64)) for _ in range(steps)]


def column(steps, name):
    """One field of the steps, with one list per env."""
    return np.array([getattr(step, name) for step in steps]).T.astype(int).tolist()


def test_stagger_truncates_the_first_episode_of_each_env_only():
    env = clocks(3, length=4)
    env.reset(np.array([0, 1, 2]))
    env.stagger(np.array([0, 2, 1]))
    steps = played(env, 8)
    assert column(steps, "truncated") == [[0] * 8, [0, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    assert column(steps, "terminated") == [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1, 0, 0]]
    assert column(steps, "first") == [[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 1, 0]]
    assert column(steps, "valid") == (1 - np.array(column(steps, "first"))).tolist()


def test_truncated_env_shows_its_reset_observation():
    env = clocks(2, length=9)
    env.reset(np.array([0, 1]))
    env.stagger(np.array([3, 0]))
    seen = [env.step(np.zeros(2, np.int64)).obs[:, 0].tolist() for _ in range(5)]
    assert seen == [[1, 1], [2, 2], [3, 3], [0, 4], [1, 5]]


def test_episode_that_ends_before_its_stagger_is_not_truncated():
    env = clocks(1, length=2)
    env.reset(np.array([0]))
    env.stagger(np.array([4]))
    assert not any(step.truncated.any() for step in played(env, 12))


def test_truncation_by_stagger_is_not_the_end_of_a_game():
    env = clocks(2, length=4)
    env.reset(np.array([0, 1]))
    env.stagger(np.array([1, 0]))
    over = [(env.step(np.zeros(2, np.int64)), env.game_over.tolist(), env.cut_short.tolist())[1:] for _ in range(4)]
    assert over == [([False, False], [True, False]), *[([False, False], NO)] * 2, ([False, True], NO)]


def test_envs_without_separate_resets_cannot_be_staggered():
    env = VectorEnv(ScriptedVectorEnv([]), "vector")
    env.reset(np.array([0, 0]))
    env.stagger(np.array([0, 0]))
    with pytest.raises(UserError, match=r"env 'vector' cannot reset single envs; set env.stagger=0"):
        env.stagger(np.array([0, 1]))
