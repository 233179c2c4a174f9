"""Parts that the user registered reach worker processes, or an error names the part that cannot."""

import pytest

import starling
from starling.envs.toy import Identity
from starling.errors import UserError
from starling.launch.user_code import parts_of


def test_only_registered_parts_in_the_configuration_are_sent():
    starling.register_env("portable-identity", Identity)
    starling.register_env("portable-other", lambda: Identity())
    assert [part.name for part in parts_of({"env": {"id": "portable-identity"}, "x": [1, {"y": None}]})] == [
        "portable-identity"
    ]


def test_part_that_cannot_be_pickled_is_a_clear_error():
    starling.register_env("portable-lambda", lambda: Identity())
    with pytest.raises(UserError, match="environment 'portable-lambda' cannot be sent to a worker process"):
        parts_of({"env": {"id": "portable-lambda"}})


def test_registered_env_trains_in_worker_processes(tmp_path):
    starling.register_env("portable-trained", Identity)
    settings = ["runtime=processes", "env.id=portable-trained", "stop.env_steps=500", "stop.return=null"]
    result = starling.train("impala-cartpole", settings, runs=tmp_path)
    assert not result.failed
    assert result.env_steps >= 500
