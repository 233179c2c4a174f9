"""MuJoCo envs: time limits truncate, actions reach their bounds, no files are left behind."""

import gymnasium
import numpy as np
import pytest

from starling.config.env import EnvConfig
from starling.envs.registry import _gymnasium, make_env

IDS = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"]


@pytest.mark.parametrize("id", IDS)
def test_time_limit_truncates_and_never_terminates(id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make_env(EnvConfig(id=id, args={"max_episode_steps": 4}), 2)
    step = env.reset(np.array([1, 2]))
    assert step.obs.dtype == np.float32
    assert env.spec.action == gymnasium.spaces.Box(-1, 1, env.spec.action.shape, np.float32)
    for t in range(9):
        step = env.step(np.zeros((2, *env.spec.action.shape), np.float32))
        assert step.truncated.all() == (t % 5 == 3)
        assert step.first.all() == (t % 5 == 4)
        assert not step.terminated.any()
    env.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("id", "args", "camera"),
    [("HalfCheetah-v5", {}, 0), ("Ant-v5", {}, 0), ("Hopper-v5", {}, -1), ("HalfCheetah-v5", {"camera_id": -1}, -1)],
)
def test_camera_follows_bodies_that_would_leave_the_image(id, args, camera):
    """Hopper's free camera follows a body already; a camera in the arguments is used."""
    env = _gymnasium(EnvConfig(id=id, args=args)).single("rgb_array")
    assert env.unwrapped.mujoco_renderer.camera_id == camera
    env.close()


def test_actions_are_rescaled_to_the_action_bounds():
    """Humanoid's bounds are [-0.4, 0.4]: the bare env with scaled actions must agree."""
    env, bare = make_env(EnvConfig(id="Humanoid-v5"), 1), gymnasium.make("Humanoid-v5").unwrapped
    env.reset(np.array([3]))
    bare.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(5):
        action = rng.uniform(-1.2, 1.2, 17).astype(np.float32)
        expected, reward, *_ = bare.step(0.4 * np.clip(action, -1, 1))
        step = env.step(action[None])
        np.testing.assert_allclose(step.obs[0], expected, rtol=1e-4, atol=1e-4)
        assert step.reward[0] == pytest.approx(reward, rel=1e-4)
    env.close()
    bare.close()
