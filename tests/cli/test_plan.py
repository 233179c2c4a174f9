"""`starling plan` as a person runs it."""

import json
import subprocess
import sys

import pytest

SMALL = ["dqn-cartpole", "env.id=toy/identity", "net.torso.hidden=[16]", "--seconds", "0.3"]


def plan(*arguments, cwd):
    command = [sys.executable, "-m", "starling", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_json_adds_up(tmp_path):
    done = plan(*SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    memory = made["memory"]
    parts = sum(memory[name] for name in ("programs", "learning", "batches", "tables", "saving", "memories", "shared"))
    assert memory["total"] == parts < memory["free"]
    assert 0 < made["disk"]["checkpoint"] < made["disk"]["total"] < made["disk"]["free"]
    total = sum(cost["median"] for cost in made["seconds_a_step"].values())
    assert made["limit_steps_per_s"] == pytest.approx(made["cores"] / total)
    assert made["steps_per_s"] == pytest.approx(1 / total)
    assert made["seconds"] == pytest.approx(150_000 * total)
    assert list(tmp_path.iterdir()) == []


def test_the_table_for_people(tmp_path):
    done = plan(*SMALL, "stop.minutes=0.01", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = [line[:10].strip() for line in lines]
    assert names == ["memory", "shared", "disk", "env step", "inference", "training", "speed", "time"]
    assert "0:00:01" in lines[-1]  # stop.minutes ends it


def test_what_cannot_fit_is_one_line_and_code_2(tmp_path):
    done = plan("dqn-cartpole", "algo.capacity=1000000000000", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "of them for the tables" in done.stderr
    assert "lower algo.capacity from 1000000000000 to " in done.stderr


def test_help_has_an_example(tmp_path):
    done = plan("--help", cwd=tmp_path)
    assert "Example: starling plan" in done.stdout
