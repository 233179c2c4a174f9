"""A run from a machine with a GPU can be inspected without one, but training elsewhere needs a new run."""

import pytest

import starling

SMALL = ["env.id=toy/identity", "env.num=4", "stop.return=null", "net.torso.hidden=[16]", "algo.learning_starts=32"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a device that no machine has."""
    folder = starling.train(
        "dqn-cartpole", [*SMALL, "stop.env_steps=64", "device=cpu"], runs=tmp_path_factory.mktemp("runs")
    ).folder
    config = folder / "config.yaml"
    text = config.read_text()
    assert "device: cpu" in text
    config.write_text(text.replace("device: cpu", "device: cuda:99"))
    return folder


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["eval"], ["--episodes", "2"]),
        (["play"], ["--log", "steps.json"]),
        (["replay", "info"], []),
    ],
)
def test_run_can_be_inspected_on_any_device(command, options, run, in_process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, complaint = in_process(*command, run, *options)
    assert (code, complaint) == (0, "")
    notices = [line for line in printed.splitlines() if line.startswith("device=cuda:99 is the run's, but torch sees ")]
    assert len(notices) == 1
    assert notices[0].endswith((": using cpu", ": using cuda"))


def test_training_continues_only_on_the_device_of_the_run(run, in_process):
    code, _, complaint = in_process("resume", run)
    assert code == 2
    assert complaint.startswith("error: device=cuda:99 was asked for, but torch sees ")
    assert complaint.endswith("; use device=cpu\n")


def test_agent_can_be_loaded_on_any_device(run):
    assert starling.load(run) is not None
