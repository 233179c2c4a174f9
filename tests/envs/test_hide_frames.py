import gymnasium
import numpy as np
import pytest

from starling.config.env import EnvConfig
from starling.envs.minatar import make
from starling.envs.registry import make_env
from starling.envs.wrappers import HideFrames
from starling.errors import UserError

BREAKOUT = "MinAtar/Breakout-v1"


def play(env, seed, steps=400):
    """Observations [steps + 1, ...] for a fixed sequence of actions, with resets at episode ends."""
    seen = [env.reset(seed=seed)[0]]
    for t in range(steps):
        obs, _, terminated, truncated, _ = env.step(t % 3)
        seen.append(env.reset()[0] if terminated or truncated else obs)
    return np.stack(seen)


def test_some_observations_are_blank_and_the_game_is_unchanged():
    plain, hidden = play(make(BREAKOUT, {}), 5), play(HideFrames(make(BREAKOUT, {}), chance=0.3), 5)
    blank = ~hidden.any(axis=(1, 2, 3))
    assert 0.2 < blank.mean() < 0.4
    np.testing.assert_array_equal(hidden[~blank], plain[~blank])
    assert not (blank[1:] & blank[:-1]).all()


def test_hidden_observations_are_determined_by_the_seed_across_resets():
    env = HideFrames(make(BREAKOUT, {}), chance=0.5)
    once, again, other = play(env, 5), play(env, 5), play(env, 6)
    np.testing.assert_array_equal(once, again)
    assert (once.any(axis=(1, 2, 3)) != other.any(axis=(1, 2, 3))).any()
    shown = []
    env.reset(seed=5)
    for _ in range(64):
        shown.append(env.reset()[0].any())
    assert 10 < sum(shown) < 54


@pytest.mark.parametrize(("chance", "shown"), [(0.0, True), (1.0, False)])
def test_chance_0_and_1(chance, shown):
    seen = play(HideFrames(make(BREAKOUT, {}), chance), 0, steps=50)
    assert (seen.any(axis=(1, 2, 3)) == shown).all()


def test_hide_frames_is_found_by_name_and_rejects_invalid_arguments():
    def config(**args):
        return EnvConfig(id=BREAKOUT, wrappers=[{"name": "HideFrames", "args": args}])

    env = make_env(config(chance=1.0), num_envs=2)
    assert not env.reset(np.array([1, 2])).obs.any()
    env.close()
    with pytest.raises(UserError, match=r"chance must be between 0 and 1, not 1\.5"):
        make_env(config(chance=1.5), num_envs=1)
    with pytest.raises(TypeError, match="only a Box can be hidden"):
        HideFrames(gymnasium.make("FrozenLake-v1"))
