"""Notes on settings that hold for another env than the one they were chosen for."""

import pytest

from starling.config.algorithms import ALGORITHMS
from starling.config.load import load, preset_names
from starling.config.notes import any_env_preset, notes_on


def notes(source, *overrides):
    return notes_on(source, overrides, load(source, overrides))


def test_settings_of_a_preset_for_another_env_are_named():
    (note,) = notes("dqn-cartpole", "env.id=Acrobot-v1")
    assert note.startswith(
        "note: dqn-cartpole is made for CartPole-v1, and Acrobot-v1 takes over its stop.env_steps=150000, stop.return="
    )
    assert note.endswith(" more; the preset for any env: dqn")
    assert "\n" not in note


def test_settings_that_are_set_as_well_are_not_named():
    (note,) = notes("dqn-cartpole", "env.id=Acrobot-v1", "stop.return=null", "algo.discount=0.9")
    assert "stop.return" not in note
    assert "discount" not in note
    assert "algo.double=true" in note


def test_settings_below_a_file_are_named(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: ppo-cartpole\nenv: {id: Acrobot-v1}\nalgo: {rollout: 64}\n")
    (note,) = notes(str(mine))
    assert note.startswith("note: ppo-cartpole is made for CartPole-v1, and Acrobot-v1 takes over its stop.")
    assert "rollout" not in note
    mine.write_text("base: ppo\nenv: {id: Acrobot-v1}\n")
    assert notes(str(mine)) == []


@pytest.mark.parametrize("preset", preset_names())
def test_presets_as_they_are_need_no_note(preset):
    assert notes(preset, "seed=3", "env.num=16") == []


@pytest.mark.parametrize(
    ("preset", "env"),
    [
        *((name, "Acrobot-v1") for name, _ in ALGORITHMS),
        ("ppo-atari", "ALE/Seaquest-v5"),
        ("ddqn-per-atari", "ALE/Seaquest-v5"),
        ("pqn-minatar", "MinAtar/Freeway-v0"),
        ("ppo", "ALE/Seaquest-v5"),
    ],
)
def test_presets_for_any_env_need_no_note(preset, env):
    assert notes(preset, f"env.id={env}") == []


@pytest.mark.parametrize(
    ("preset", "env", "advised"),
    [
        ("ppo-atari", "Acrobot-v1", "ppo"),
        ("impala-pong", "ALE/Seaquest-v5", "impala-atari"),
        ("dqn-cartpole", "ALE/Seaquest-v5", "dqn-atari"),
        ("ppo-cartpole", "MinAtar/Freeway-v1", "ppo-minatar"),
        ("dqn-cartpole", "MinAtar/Freeway-v1", "dqn"),
        ("sac-hopper", "Ant-v5", "sac"),
    ],
)
def test_advised_preset_is_the_one_for_the_kind_of_env(preset, env, advised):
    (note,) = notes(preset, f"env.id={env}")
    assert note.endswith(f"; the preset for any env: {advised}")


def test_every_algorithm_has_a_preset_for_any_env():
    added = {name for name, _ in ALGORITHMS.added()}
    names = [name for name, _ in ALGORITHMS if name not in added]
    assert [any_env_preset(name, "Acrobot-v1") for name in names] == names
    assert any_env_preset("package.module:Class", "Acrobot-v1") is None


def test_what_an_atari_id_has_become_is_said():
    assert notes("dqn-atari", "env.id=PongDeterministic-v0") == [
        "env: PongDeterministic-v0 is ALE/Pong-v5 with env.atari.frame_skip=4 and env.atari.sticky=0.25"
    ]
    assert notes("dqn-atari", "env.id=ALE/Pong-v5") == []


def test_what_an_atari_id_in_a_file_has_become_is_said(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: dqn-atari\nenv: {id: Pong}\n")
    assert notes(str(mine)) == ["env: Pong is ALE/Pong-v5 with env.atari.frame_skip=4 and env.atari.sticky=0"]


def test_mission_that_is_left_out_is_named_unless_a_wrapper_may_convert_it():
    (note,) = (note for note in notes("ppo", "env.id=MiniGrid-Empty-5x5-v0") if "mission" in note)
    assert "env.wrappers='{minigrid.wrappers:DictObservationSpaceWrapper: {}}'" in note
    wrapped = notes("ppo", "env.id=BabyAI-GoToObj-v0", "env.wrappers={SelectObservation: {key: image}}")
    assert not any("mission" in note for note in wrapped)
