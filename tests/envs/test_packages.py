"""Environments of other packages: agents train on each for some updates, where its package is installed."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import starling
from starling.envs.catalog import check_id, gymnasium_spec, known_ids
from starling.envs.wrappers import SelectObservation, without_text
from starling.errors import UserError

SCREEN = (
    "env.wrappers={SelectObservation: {key: screen}, ResizeObservation: {shape: [36, 36]}, GrayscaleObservation: {},"
    " FrameStackObservation: {stack_size: 4}}"
)
SHORT = ["env.num=2", "threads=1", "algo.rollout=8", "net.torso.hidden=[16]", "stop={env_steps: 48}", "log.every=16"]


@pytest.mark.parametrize(
    ("module", "id", "settings"),
    [
        ("Box2D", "LunarLander-v3", []),
        ("Box2D", "BipedalWalker-v3", []),
        ("popgym", "popgym-RepeatPreviousEasy-v0", []),
        ("popgym", "popgym-BattleshipEasy-v0", []),
        ("dm_control", "dm_control/walker-walk-v0", []),
        ("minigrid", "MiniGrid-DoorKey-5x5-v0", []),
        ("minigrid", "BabyAI-GoToRedBall-v0", []),
        (
            "minigrid",
            "MiniGrid-Fetch-5x5-N2-v0",
            ["env.wrappers={minigrid.wrappers:DictObservationSpaceWrapper: {}}"],
        ),
        ("vizdoom", "VizdoomBasic-v1", [SCREEN]),
        ("envpool", "envpool/WalkerWalk-v1", []),
    ],
)
def test_agents_train_on_envs_of_a_package(tmp_path, module, id, settings):
    pytest.importorskip(module)
    result = starling.train("ppo", [f"env.id={id}", *SHORT, *settings], runs=tmp_path)
    assert result.env_steps >= 48
    assert result.updates > 0


def test_every_env_of_popgym_is_listed():
    pytest.importorskip("popgym")
    assert gymnasium_spec("popgym-AutoencodeEasy-v0") is not None
    assert sum(id.startswith("popgym-") for id in known_ids()) >= 42


@pytest.mark.parametrize(("module", "prefix"), [("minigrid", "MiniGrid-WFC-"), ("vizdoom", "VizdoomDoom")])
def test_envs_whose_files_the_package_lacks_are_not_listed(module, prefix):
    pytest.importorskip(module)
    assert any(id.startswith(prefix[:7]) for id in known_ids())
    assert not any(id.startswith(prefix) for id in known_ids())


def test_rendered_observations_without_a_display_are_a_one_line_error(monkeypatch):
    pytest.importorskip("dm_control")
    for name in ("DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    for id in ("dm_control/reach_site_vision-v0", "dm_control/RodentTwoTouch-v0"):
        with pytest.raises(UserError, match="there is no display: set MUJOCO_GL=egl or osmesa"):
            check_id(id)
    check_id("dm_control/reach_site_features-v0")


class Instructed(gymnasium.Env):
    """Observations are an image and an instruction."""

    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (4, 4), np.uint8), "mission": spaces.Text(20)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"image": np.full((4, 4), 7, np.uint8), "mission": "go there"}, {}


def test_text_is_left_out():
    env = without_text(Instructed())
    assert list(env.observation_space) == ["image"]
    assert list(env.reset()[0]) == ["image"]
    assert without_text(env) is env


def test_one_part_of_a_dict_is_selected():
    env = SelectObservation(Instructed(), "image")
    assert env.observation_space.shape == (4, 4)
    assert (env.reset()[0] == 7).all()
    with pytest.raises(ValueError, match="there is no 'picture'; key is one of image, mission"):
        SelectObservation(Instructed(), "picture")
    with pytest.raises(TypeError, match="only a Dict has parts to select"):
        SelectObservation(env, "image")
