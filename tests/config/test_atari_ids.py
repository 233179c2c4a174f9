"""Ids of Atari games that people type, and what the ALE itself registers under them."""

import gymnasium
import pytest

from starling.config.atari_ids import GAMES, resolve
from starling.config.env import AtariConfig, EnvConfig
from starling.config.load import from_dict, load
from starling.envs.catalog import atari_games
from starling.envs.registry import env_spec
from starling.errors import UserError


def test_every_game_of_the_ale_is_known():
    assert {f"ALE/{game}-v5" for game in GAMES} == set(atari_games())


def test_settings_are_those_that_the_ale_registers():
    import ale_py

    gymnasium.register_envs(ale_py)
    found = {id: spec for id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("ale_py.")}
    legacy = {id: spec.kwargs for id, spec in found.items() if "/" not in id}
    assert len(legacy) == 4 * 62
    for id, kwargs in legacy.items():
        if "NoFrameskip" in id:
            assert resolve(id).settings == {"sticky": kwargs["repeat_action_probability"]}
            assert found[resolve(id).id].kwargs["game"] == kwargs["game"]
        else:
            assert kwargs["frameskip"] == (2, 5)
            with pytest.raises(ValueError, match=f"2 to 4 times at random.* use ALE/.* or ale_py:{id} for"):
                resolve(id)


@pytest.mark.parametrize(
    ("id", "frame_skip", "sticky"),
    [
        ("Pong", 4, 0.0),
        ("Pong-v5", 4, 0.0),
        ("PongNoFrameskip-v4", 4, 0.0),
        ("PongNoFrameskip-v0", 4, 0.25),
        ("PongDeterministic-v4", 4, 0.0),
        ("PongDeterministic-v0", 4, 0.25),
    ],
)
@pytest.mark.parametrize("preset", ["dqn-atari", "dqn-cartpole", "ppo-rnd-montezuma"])
def test_ids_stand_for_the_ale_with_their_own_settings(id, frame_skip, sticky, preset):
    before, env = load(preset).env.atari, load(preset, [f"env.id={id}"]).env
    assert env.id == "ALE/Pong-v5"
    expected = before.sticky if "-v" not in id or id.endswith("v5") else sticky
    assert env.atari == before.model_copy(update={"frame_skip": frame_skip, "sticky": expected})


def test_space_invaders_has_three_frames():
    """With four, its lasers would be invisible: they blink."""
    env = load("dqn-atari", ["env.id=SpaceInvadersDeterministic-v4"]).env
    assert (env.id, env.atari.frame_skip) == ("ALE/SpaceInvaders-v5", 3)
    assert env_spec(env.model_copy(update={"num": 1})).frames_per_step == 3


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("given", ["env.atari.sticky=0.1", "env.atari={sticky: 0.1}"])
def test_settings_given_beside_the_id_win(order, given):
    env = load("dqn-atari", ["env.id=PongDeterministic-v0", given][::order]).env
    assert (env.id, env.atari.sticky, env.atari.frame_skip) == ("ALE/Pong-v5", 0.1, 4)


def test_ids_in_files_and_dicts_are_understood(tmp_path):
    mine = tmp_path / "mine.yaml"
    for text in (
        "base: ppo-rnd-montezuma\nenv: {id: PongNoFrameskip-v0}\n",
        "algo: {name: dqn}\nenv: {id: PongNoFrameskip-v0}\n",
    ):
        mine.write_text(text)
        assert load(str(mine)).env.atari.sticky == 0.25
        assert load(str(mine), ["env.atari.sticky=0.5"]).env.atari.sticky == 0.5
        assert load(str(mine), ["env.id=ALE/Breakout-v5", "env.num=2"]).env.id == "ALE/Breakout-v5"
    mine.write_text("base: ppo-rnd-montezuma\nenv: {atari: {sticky: 0.5}, id: PongNoFrameskip-v0}\n")
    assert load(str(mine)).env.atari.sticky == 0.5
    values = {"algo": {"name": "dqn"}, "env": {"id": "PongNoFrameskip-v0", "atari": {"stack": 2}}}
    assert from_dict(values).env.atari == AtariConfig(stack=2, sticky=0.25)
    assert EnvConfig(id="PongNoFrameskip-v0", atari=AtariConfig(sticky=0.5)).atari.sticky == 0.5


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("Pong-v4", "env.id: Pong-v4 repeats each action 2 to 4 times at random, which env.atari does not do: use"),
        ("Pong-v0", "with env.atari.sticky=0.25, or ale_py:Pong-v0 for that env without preprocessing"),
        ("Pong-v3", "env.id: there is no Pong-v3: use ALE/Pong-v5"),
        ("PongNoFrameskip", "env.id: there is no PongNoFrameskip: use ALE/Pong-v5"),
        ("Pong-ram-v4", "observes the memory of the console: use ale_py:ALE/Pong-v5 with env.args='{obs_type: ram}'"),
        ("Pong-ramNoFrameskip-v4", "observes the memory of the console"),
        ("PogNoFrameskip-v4", "env.id: unknown Atari game 'Pog'; did you mean 'Pong'"),
    ],
)
def test_ids_that_cannot_be_had_are_answered_with_the_one_to_use(id, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        load("dqn-atari", [f"env.id={id}"])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "id", ["CartPole-v0", "FrozenLake8x8-v1", "Blackjack-v1", "pong", "PongX", "Pong-v4x", "", "ALE/Pong-v5"]
)
def test_other_ids_are_left_alone(id):
    assert resolve(id) is None


def test_envs_named_in_the_answers_can_be_made():
    plain = env_spec(EnvConfig(id="ale_py:Pong-v4", num=1))
    assert plain.observation.shape == (210, 160, 3)
    memory = env_spec(EnvConfig(id="ale_py:ALE/Pong-v5", args={"obs_type": "ram"}, num=1))
    assert memory.observation.shape == (128,)
