"""A user's own registered parts reach worker processes, or it is said which one cannot."""

import pytest

import starling
from starling.envs.toy import Identity
from starling.errors import UserError
from starling.launch.user_code import parts_of


def test_only_parts_that_are_named_travel():
    starling.register_env("portable-identity", Identity)
    starling.register_env("portable-other", lambda: Identity())
    assert [part.name for part in parts_of({"env": {"id": "portable-identity"}, "x": [1, {"y": None}]})] == [
        "portable-identity"
    ]


def test_a_part_that_cannot_travel_is_named():
    starling.register_env("portable-lambda", lambda: Identity())
    with pytest.raises(UserError, match="environment 'portable-lambda' cannot be sent to a worker process"):
        parts_of({"env": {"id": "portable-lambda"}})


def test_a_registered_env_is_trained_on_in_processes(tmp_path):
    starling.register_env("portable-trained", Identity)
    settings = ["runtime=processes", "env.id=portable-trained", "stop.env_steps=500", "stop.return=null"]
    result = starling.train("impala-cartpole", settings, runs=tmp_path)
    assert not result.failed
    assert result.env_steps >= 500
