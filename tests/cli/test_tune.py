"""`starling tune-throughput` as a user runs it."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from starling.cli.main import app
from starling.config.load import load
from starling.errors import UserError
from starling.launch.plan import RunPlan
from starling.tools.benchmark.tuning import Choice

TOY = ["env.id=toy/identity", "env.num=2", "algo.unroll=5", "algo.batch=2", "net.torso.hidden=[8]"]


KEYS = ("runtime", "inference", "actors", "threads", "env.num")


def tune(*arguments):
    return CliRunner().invoke(app, ["tune-throughput", *arguments], catch_exceptions=False)


@pytest.mark.slow
def test_fastest_settings_are_saved_as_a_trainable_file(tmp_path, monkeypatch):
    monkeypatch.setattr("starling.tools.benchmark.tuning.cores", lambda: 1)  # fewer trials, but of every kind
    out = tmp_path / "tuned.yaml"
    done = tune("impala-cartpole", *TOY, "--seconds", "0.3", "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1])
    assert lines[0].split() == ["runtime", "inference", "actors", "threads", "envs", "steps/s"]
    assert lines[len(found["trials"]) + 1] == ""  # one line per trial
    assert f"use:     starling train {out}" in lines
    kinds = {(trial["runtime"], trial["inference"]) for trial in found["trials"]}
    assert kinds == {("inline", "local"), ("processes", "local"), ("processes", "central")}
    assert {trial["env.num"] for trial in found["trials"]} == {2}
    assert all(trial["steps_per_s"] > 0 for trial in found["trials"])
    assert found["steps_per_s"] >= found["trials"][0]["steps_per_s"]
    tuned = load(str(out))
    assert tuned == Choice(*(found["best"][key] for key in KEYS)).apply(load("impala-cartpole", TOY))
    RunPlan.from_config(tuned)


def test_number_of_envs_is_varied_only_if_requested(monkeypatch):
    """With simulated speeds that grow with the number of envs, which real ones may not do on a busy machine."""
    monkeypatch.setattr("starling.tools.benchmark.tuning.cores", lambda: 1)
    monkeypatch.setattr(
        "starling.tools.benchmark.tuning.watch", lambda config, *_: SimpleNamespace(steps_per_s=float(config.env.num))
    )
    fixed, varied = tune("impala-cartpole", *TOY, "--json"), tune("impala-cartpole", *TOY, "--json", "--envs")
    assert (fixed.exit_code, varied.exit_code) == (0, 0), fixed.output + varied.output
    assert json.loads(fixed.stdout.splitlines()[-1])["best"]["env.num"] == 2
    assert json.loads(varied.stdout.splitlines()[-1])["best"]["env.num"] == 8


def test_ctrl_c_ends_with_the_best_choice_so_far():
    command = [
        sys.executable,
        "-m",
        "starling",
        "tune-throughput",
        "impala-cartpole",
        *TOY,
        "--seconds",
        "0.5",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline() for _ in range(2)]  # the column names and the first trial
        process.send_signal(signal.SIGINT)
        rest, complaint = process.communicate(timeout=240)
    assert process.returncode == 0, complaint
    assert "stopped; this is the best so far" in rest
    found = json.loads(rest.splitlines()[-1])
    assert len(found["trials"]) <= 2
    assert found["best"]["runtime"] in said[1] + rest.splitlines()[0]
    assert f"actors={found['best']['actors']}" in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown preset"),
        (["impala-cartpole", "--out", "tuned.txt"], "must end in .yaml"),
        (["impala-cartpole", "--out", "nowhere/tuned.yaml"], "nowhere is not a folder"),
        (["impala-cartpole", "actors=99"], "actors=99 is more than the env.num=16 envs"),
    ],
)
def test_invalid_input_is_rejected_before_any_trial(arguments, message):
    with pytest.raises(UserError, match=message):
        tune(*arguments)


def test_help_has_an_example():
    assert "Example: starling tune-throughput" in tune("--help").stdout
