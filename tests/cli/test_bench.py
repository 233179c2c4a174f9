"""`starling bench throughput` as a user runs it."""

import json

import pytest
from typer.testing import CliRunner

from starling.cli.main import app
from starling.errors import UserError

TOY = ["env.id=toy/identity", "env.num=4", "algo.unroll=5", "algo.batch=4", "net.torso.hidden=[8]", "log.every=50"]


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", "throughput", *arguments], catch_exceptions=False)


def test_throughput_is_measured_and_compared_with_its_limit(two_cores, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = bench("--preset", "impala-cartpole", *TOY, "--seconds", "1.5", "--json")
    assert done.exit_code == 0, done.output
    *table, last = done.stdout.splitlines()
    names = [line[:10].strip() for line in table]
    assert names == ["speed", "limit", "efficiency", "lag", "actors", "learner", "env step", "inference", "training"]
    found = json.loads(last)
    assert found["preset"] == "impala-cartpole"
    assert found["overrides"] == TOY
    assert found["seconds"] >= 1.5
    assert found["steps_per_s"] == found["frames_per_s"] > 0
    assert found["efficiency"] == pytest.approx(found["steps_per_s"] / found["limit_steps_per_s"])
    total = sum(found["costs"][kind]["median"] for kind in ("env_step", "inference", "training"))
    assert found["limit_steps_per_s"] == pytest.approx(2 / total)
    assert found["costs"]["limits"]
    assert set(found["busy"]) == {"actors", "learner"}
    assert found["lag"] >= 0
    assert found["settings"]["runtime"] == "inline"
    assert found["versions"]["torch"]
    assert list(tmp_path.iterdir()) == []


def test_invalid_input_is_rejected_before_measuring():
    with pytest.raises(UserError, match="unknown preset"):
        bench("--preset", "nothing")
    with pytest.raises(UserError, match="unknown key 'actorz'"):
        bench("--preset", "impala-cartpole", "actorz=2")
    assert bench("--preset", "impala-cartpole", "--seconds", "0").exit_code == 2


def test_help_has_an_example():
    assert "Example: starling bench throughput" in bench("--help").stdout
