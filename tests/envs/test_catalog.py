"""The catalog lists exactly the envs that can be made."""

import sys
import warnings

import gymnasium
import pytest

from starling.config.env import EnvConfig
from starling.envs.catalog import known_ids, missing
from starling.envs.registry import make_env
from starling.errors import UserError


def can_be_made(id):
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about deprecated versions
            make_env(EnvConfig(id=id), 1).close()
    except UserError:
        return False
    return True


def test_exactly_the_ids_that_can_be_made_are_listed():
    """Pong represents all games of the ALE."""
    registered = [id for id, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py.")]
    listed = [id for id in known_ids() if not id.startswith("ALE/")]
    assert [id for id in sorted({*registered, *listed}) if can_be_made(id)] == listed
    assert {"CartPole-v1", "MinAtar/Breakout-v0", "toy/rooms"} <= set(listed)
    assert "ALE/Pong-v5" in known_ids()
    assert can_be_made("ALE/Pong-v5")


@pytest.mark.parametrize(
    ("package", "requirement", "id"),
    [
        ("ale_py", "starling-rl[atari]", "ALE/Pong-v5"),
        ("minatar", "starling-rl[minatar]", "MinAtar/Breakout-v1"),
        ("mujoco", "starling-rl[mujoco]", "Ant-v5"),
        ("Box2D", "starling-rl[box2d]", "LunarLander-v3"),
        ("gym_super_mario_bros", "starling-rl[mario]", "SuperMarioBros-1-1-v0"),
        ("popgym", "starling-rl[popgym]", "popgym-AutoencodeEasy-v0"),
        ("minigrid", "starling-rl[minigrid]", "MiniGrid-Empty-5x5-v0"),
        ("minigrid", "starling-rl[minigrid]", "BabyAI-GoToRedBall-v0"),
        ("vizdoom", "starling-rl[vizdoom]", "VizdoomBasic-v1"),
        ("shimmy", "starling-rl[dm-control]", "dm_control/walker-walk-v0"),
        ("jax", "gymnasium[jax]", "phys2d/CartPole-v1"),
    ],
)
def test_envs_of_a_missing_package_are_not_listed_and_the_error_names_it(monkeypatch, package, requirement, id):
    monkeypatch.setitem(sys.modules, package, None)
    assert id not in known_ids()
    assert any(id.startswith(added.removesuffix("...")) for added in missing()[requirement])
    with pytest.raises(UserError) as caught:
        make_env(EnvConfig(id=id), 1)
    assert str(caught.value) == f"env {id!r} needs the package {package}: pip install '{requirement}'"


@pytest.mark.parametrize("error", [ImportError("a\nlibrary"), RuntimeError("a\nlibrary"), SystemExit("a\nlibrary")])
@pytest.mark.parametrize("num_envs", [1, 8])
def test_registered_env_that_cannot_be_made_is_a_one_line_error(monkeypatch, error, num_envs):
    def raises(**_):
        raise error

    spec = gymnasium.envs.registration.EnvSpec("Raises-v0", entry_point=raises, vector_entry_point=raises)
    monkeypatch.setitem(gymnasium.registry, "Raises-v0", spec)
    with pytest.raises(UserError, match=r"^env 'Raises-v0' cannot be made here: [^\n]*a library$"):
        make_env(EnvConfig(id="Raises-v0"), num_envs)
