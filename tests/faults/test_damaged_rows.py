"""Sound runs whose metrics.jsonl is damaged."""

import json

import pytest

import starling
from starling.api import Quiet
from starling.config.load import load
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch

SETTINGS = ["net.torso.hidden=[8]", "env.num=2", "algo.rollout=16", "log.every=64", "checkpoint.every=128"]


class Recorder(Quiet):
    def __init__(self):
        self.lines = []

    def message(self, line):
        self.lines.append(line)


@pytest.fixture
def damaged(tmp_path):
    """A run with several rows, of which the second is not UTF-8, the third not JSON, and the last one torn."""
    run = RunFolder(starling.train("ppo-cartpole", [*SETTINGS, "stop.env_steps=256", "run=a"], runs=tmp_path).folder)
    first, second, third, fourth, *_ = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(first + b"\xff" + second + b"x" + third + fourth + fourth[:20])
    run.config_file.write_text(run.config_file.read_text().replace("env_steps: 256", "env_steps: 384"))
    return run


def check(folder, recorder):
    (warning,) = [line for line in recorder.lines if "damaged" in line]
    assert warning == f"warning: {folder / 'metrics.jsonl'}: 3 damaged rows are left out"
    assert warning in (folder / "log.txt").read_text()
    steps = [row["env_steps"] for row in read_rows(folder / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    assert steps[0] == 64
    assert 256 <= steps[1] < 260
    assert steps[-1] >= 384
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == steps


def test_run_is_resumed_with_the_readable_rows(damaged):
    recorder = Recorder()
    assert starling.resume(damaged.path, display=recorder).exit_code == 0
    check(damaged.path, recorder)


def test_run_is_branched_with_the_readable_rows(damaged, tmp_path):
    recorder, before = Recorder(), damaged.metrics_file.read_bytes()
    result = branch(damaged.path, load(str(damaged.config_file), ["run=b"]), tmp_path, recorder)
    assert result.exit_code == 0
    check(result.folder, recorder)
    assert damaged.metrics_file.read_bytes() == before
