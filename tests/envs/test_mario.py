"""Super Mario Bros. on the real emulator."""

from importlib.util import find_spec

import numpy as np
import pytest

import starling
from starling.config.env import EnvConfig
from starling.envs.mario import MarioEnv, make
from starling.envs.registry import env_spec, make_env
from starling.envs.vector import GAME_OVER
from starling.errors import UserError

pytestmark = pytest.mark.skipif(find_spec("nes_py") is None, reason="`make install` builds nes-py with g++")
FIRST = "SuperMarioBros-1-1-v0"
RUN, RUN_AND_JUMP, LEFT = 3, 4, 6


def play(env, action, most=200):
    """The steps of one action until the episode ends: (obs, reward, terminated, truncated, info)."""
    steps = []
    while len(steps) < most and not (steps and steps[-1][2]):
        steps.append(env.step(action))
    return steps


@pytest.fixture(scope="module")
def first():
    """The first stage without random frames at the start."""
    env = make(FIRST, {"noop_max": 0}, "rgb_array")
    yield env
    env.close()


def test_reward_is_the_way_to_the_right_less_the_time_until_mario_dies(first):
    _, start = first.reset(seed=0)
    steps = play(first, RUN)
    *alive, dead = steps
    last = alive[-1][-1]
    assert sum(reward for _, reward, *_ in alive) == last["x_pos"] - start["x_pos"] + last["time"] - start["time"]
    assert last["x_pos"] > 256, "the position takes two bytes of memory"
    assert dead[1] < 0
    assert dead[2]
    assert dead[-1][GAME_OVER]
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in alive)
    assert {type(value) for value in last.values()} == {int, bool}


def test_episodes_are_alike_and_games_do_not_share_their_state(first):
    first.reset(seed=0)
    alone = play(first, RUN_AND_JUMP, 30)
    first.reset(seed=0)
    other = make(FIRST, {"noop_max": 0})
    other.reset(seed=1)
    for expected in alone:
        other.step(LEFT)
        obs, reward, *_, info = first.step(RUN_AND_JUMP)
        np.testing.assert_array_equal(obs, expected[0])
        assert (reward, info) == (expected[1], expected[-1])
    other.close()


def test_frames_are_gray_84x84_and_slide_through_the_stack(first):
    obs, _ = first.reset(seed=0)
    assert not obs[:3].any()
    for _ in range(5):
        new, *_ = first.step(RUN)
        np.testing.assert_array_equal(new[:3], obs[1:])
        obs = new
    screen = first.render()
    assert (screen.shape, obs.shape, obs.dtype) == ((240, 256, 3), (4, 84, 84), np.uint8)
    luminance = screen @ [0.299, 0.587, 0.114]
    assert abs(luminance.mean() - obs[-1].mean()) < 1
    assert (screen[100, 128] == [104, 136, 252]).all(), "the sky is blue: red, green, blue"


def test_screen_is_a_copy(first):
    first.reset(seed=0)
    before = first.render()
    copy = before.copy()
    play(first, RUN, 20)
    np.testing.assert_array_equal(before, copy)


def test_skipped_frames_add_up(first):
    single = make(FIRST, {"noop_max": 0, "frame_skip": 1})
    assert single.reset(seed=0)[1] == first.reset(seed=0)[1]
    for _ in range(20):
        obs, reward, *_, info = first.step(RUN)
        frames = [single.step(RUN) for _ in range(4)]
        assert (reward, info) == (sum(frame[1] for frame in frames), frames[-1][-1])
        np.testing.assert_array_equal(obs[-1], frames[-1][0][-1])
    single.close()


def test_random_frames_at_the_start_depend_on_the_seed():
    env = make(FIRST, {})
    clocks = [env.reset(seed=seed)[1]["time"] for seed in (1, 1, 2, 3, 4, 5)]
    assert clocks[0] == clocks[1]
    assert len(set(clocks)) > 1
    env.close()


@pytest.mark.parametrize("lives", [True, False])
def test_lost_life_ends_the_episode_but_not_the_game(lives):
    env = make_env(EnvConfig(id="SuperMarioBros-v0", args={"episodic_life": lives, "noop_max": 0}), 1)
    env.reset(np.array([0]))
    ends = []
    for _ in range(400):
        step = env.step(np.array([RUN]))
        if step.terminated[0]:
            ends.append((int(env.infos["life"][0]), bool(env.game_over[0])))
        if env.game_over[0]:
            break
    assert ends == ([(1, False), (0, False), (255, True)] if lives else [(255, True)])
    env.step(np.array([RUN]))
    assert env.infos["life"][0] == 2
    env.close()


@pytest.mark.parametrize(("id", "place"), [("SuperMarioBros-4-2-v1", (4, 2)), ("SuperMarioBros2-v0", (1, 1))])
def test_id_names_the_world_and_the_stage(id, place):
    env = make(id, {})
    info = env.reset(seed=0)[1]
    assert (info["world"], info["stage"]) == place
    env.close()


def test_stages_are_chosen_at_random_for_each_episode():
    env = make("SuperMarioBrosRandomStages-v0", {"stages": ["1-2", "8-1"]})
    places = [env.reset(seed=seed)[1] for seed in range(6)]
    assert {(info["world"], info["stage"]) for info in places} == {(1, 2), (8, 1)}
    env.close()


def test_settings_determine_the_spaces():
    args = {"actions": "complex", "size": 60, "stack": 2, "grayscale": False, "frame_skip": 2}
    spec = env_spec(EnvConfig(id=FIRST, args=args))
    assert (spec.observation.shape, spec.action.n, spec.stack.n, spec.frames_per_step) == ((2, 60, 60, 3), 12, 2, 2)
    assert env_spec(EnvConfig(id=FIRST, args={"actions": "right"})).action.n == 5


def test_actions_are_those_of_the_package():
    from gym_super_mario_bros import actions
    from nes_py.wrappers import JoypadSpace

    named = {"right": actions.RIGHT_ONLY, "simple": actions.SIMPLE_MOVEMENT, "complex": actions.COMPLEX_MOVEMENT}
    for name, buttons in named.items():
        pressed = [sum(JoypadSpace._button_map[button] for button in combination) for combination in buttons]
        assert list(MarioEnv(actions=name)._buttons) == pressed


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("SuperMarioBros-9-1-v0", {}, r"unknown environment 'SuperMarioBros-9-1-v0'; did you mean 'SuperMarioBros-"),
        (FIRST, {"actions": "simpel"}, r"env.args.actions is 'simpel'.* right, simple, complex.*did you mean 'simple'"),
        (FIRST, {"frame_skip": 0}, "env.args.frame_skip is 0; use an integer of at least 1"),
        (FIRST, {"stack": "four"}, "env.args.stack is 'four'; use an integer of at least 1"),
        (FIRST, {"stages": ["1-2"]}, "env.args.stages is for SuperMarioBrosRandomStages-v0"),
        ("SuperMarioBrosRandomStages-v0", {"stages": ["1-5"]}, "env.args.stages has '1-5'; stages are 1-1"),
        ("SuperMarioBrosRandomStages-v0", {"stages": []}, "env.args.stages is empty"),
        (FIRST, {"framskip": 4}, "does not accept env.args: .*'framskip'"),
    ],
)
def test_wrong_setting_is_a_one_line_error(id, args, message):
    with pytest.raises(UserError, match=message):
        make_env(EnvConfig(id=id, args=args), 1)


def test_preset_learns_with_central_inference(tmp_path):
    settings = [
        "env.num=2", "env.args.frame_skip=2", "actors=1", "threads=1", "net.torso.hidden=[16]", "algo.fragment=2",
        "algo.learning_starts=16", "algo.batch=4", "stop={env_steps: 60}", "log.every=20",
    ]  # fmt: skip
    result = starling.train("ddqn-mario", settings, runs=tmp_path)
    assert result.env_steps >= 60
    assert result.updates > 0
