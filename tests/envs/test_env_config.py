import pytest
from pydantic import ValidationError

from starling.config.env import AtariConfig, EnvConfig, WrapperConfig


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
