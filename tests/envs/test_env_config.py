import json

import pytest
from pydantic import ValidationError

from starling.config.env import AtariConfig, EnvConfig, WrapperConfig
from starling.config.load import load
from starling.envs.registry import env_spec
from starling.errors import UserError


@pytest.mark.parametrize("part", [EnvConfig, AtariConfig, WrapperConfig])
def test_every_key_is_described(part):
    assert all(field.description for field in part.model_fields.values())


@pytest.mark.parametrize(
    "fields",
    [
        {"num": 0},
        {"id": ""},
        {"reward_clip": 0},
        {"vectorize": "async"},
        {"atari": {"sticky": 1.0}},
        {"atari": {"frame_skip": 0}},
        {"wrappers": [{"args": {}}]},
        {"nun": 3},
    ],
)
def test_invalid_values_are_rejected(fields):
    with pytest.raises(ValidationError):
        EnvConfig(**{"id": "CartPole-v1", **fields})


def test_wrappers_are_a_list_or_a_section_in_order():
    listed = [{"name": "TimeLimit", "args": {"max_episode_steps": 7}}, {"name": "FlattenObservation"}]
    named = {"TimeLimit": {"max_episode_steps": 7}, "FlattenObservation": None}
    expected = EnvConfig(id="CartPole-v1", wrappers=listed)
    assert EnvConfig(id="CartPole-v1", wrappers=named) == expected
    assert load("dqn-cartpole", [f"env.wrappers={json.dumps(named)}"]).env.wrappers == expected.wrappers
    assert env_spec(EnvConfig(id="CartPole-v1", wrappers={"DelayObservation": {"delay": 2}})).observation.shape == (4,)


def test_wrappers_of_a_file_replace_a_list_and_are_merged_into_a_section(tmp_path):
    base, mine = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    mine.write_text("base: base.yaml\nenv: {wrappers: {TimeLimit: {max_episode_steps: 9}}}\n")
    base.write_text("base: dqn-cartpole\nenv: {wrappers: [{name: FlattenObservation}]}\n")
    assert [(each.name, each.args) for each in load(str(mine)).env.wrappers] == [
        ("TimeLimit", {"max_episode_steps": 9})
    ]
    base.write_text(
        "base: dqn-cartpole\nenv: {wrappers: {TimeLimit: {max_episode_steps: 1}, FlattenObservation: {}}}\n"
    )
    assert [(each.name, each.args) for each in load(str(mine)).env.wrappers] == [
        ("TimeLimit", {"max_episode_steps": 9}),
        ("FlattenObservation", {}),
    ]


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        ("{name: TimeLimit}", "env.wrappers: the arguments of 'name' must be keys and values, not 'TimeLimit'"),
        ("{TimeLimit: 3}", "env.wrappers: the arguments of 'TimeLimit' must be keys and values, not 3"),
        ("{TimeLimit: {1: 2}}", "the key must be text"),
        ("TimeLimit", "env.wrappers: must be a list of sections"),
        ("{1: {}}", "env.wrappers"),
    ],
)
def test_wrappers_of_another_form_are_one_clear_line(wrappers, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        load("dqn-cartpole", [f"env.wrappers={wrappers}"])
    assert message in str(caught.value)
