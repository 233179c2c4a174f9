"""Runs that several real processes want to use at the same time."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import starling as starling_api
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import lock
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch
from starling.tools.evaluate import evaluate_run

pytestmark = pytest.mark.slow

WITHOUT_WAITING = (
    "from starling.experiment.run_folder import lock; lock.WAIT_SECONDS = 0.5;"
    " from starling.cli.main import main; main()"
)
SETTINGS = [
    "net.torso.hidden=[8]",
    "env.num=2",
    "algo.fragment=16",
    "algo.learning_starts=64",
    "checkpoint.every=64",
    "log.every=64",
    "stop.env_steps=100000000",
    "stop.return=null",
]


def starling(*arguments, **settings):
    command = [sys.executable, "-c", WITHOUT_WAITING, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def holders(file):
    """The processes that have a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                found.add(int(link.parts[2]))
        except OSError:
            pass
    return found


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_run_in_use_is_rejected_and_a_killed_run_is_resumed_at_once(tmp_path, monkeypatch):
    """With worker processes, which do not inherit the lock."""
    process = starling("train", "dqn-cartpole", "runtime=processes", "run=a", *SETTINGS, "--runs", tmp_path)
    run = RunFolder(tmp_path / "a")
    with process:
        try:
            wait_until(lambda: list(run.checkpoints.glob("step-*")) or process.poll() is not None)
            assert process.poll() is None, process.stderr.read()
            assert holders(run.path / ".lock") == {process.pid}
            before = read_rows(run.metrics_file)
            monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)
            with pytest.raises(UserError, match=f"is in use by process {process.pid}"):
                starling_api.resume(run.path)
            assert process.poll() is None
            assert read_rows(run.metrics_file)[: len(before)] == before
        finally:
            process.kill()
    run.config_file.write_text(run.config_file.read_text().replace("env_steps: 100000000", "env_steps: 1"))
    assert starling_api.resume(run.path).exit_code == 0


def test_of_two_concurrent_resumes_one_is_rejected(tmp_path):
    run = RunFolder(starling_api.train("dqn-cartpole", [*SETTINGS, "stop.env_steps=64", "run=a"], runs=tmp_path).folder)
    run.config_file.write_text(run.config_file.read_text().replace("env_steps: 64", "env_steps: 100000000"))
    first, second = both = [starling("resume", run.path) for _ in range(2)]
    with first, second:
        try:
            wait_until(lambda: any(one.poll() is not None for one in both))
            refused, other = sorted(both, key=lambda one: one.poll() is None)
            complaint = refused.stderr.read()
            assert refused.returncode == 2
            assert re.fullmatch(rf"error: {run.path} is in use by process {other.pid} on host \S+; .*\n", complaint)
            assert refused.stdout.read().count("waiting up to 0.5 s") == 1
            wait_until(lambda: len(read_rows(run.metrics_file)) > 3 or other.poll() is not None)
            other.send_signal(signal.SIGINT)
            assert (other.wait(60), other.stderr.read()) == (0, "")
        finally:
            first.kill()
            second.kill()
    steps = [row["env_steps"] for row in read_rows(run.metrics_file)]
    assert steps[0] == 64
    assert steps == sorted(steps)


class LockingDisplay:
    """A display that tries to take the lock of the run."""

    def __init__(self, folder):
        self.folder, self.refused = folder, 0

    def tick(self, status): ...

    def message(self, line): ...

    def row(self, row):
        with pytest.raises(UserError, match="is in use"), lock.locked(self.folder, self.message):
            pass
        self.refused += 1


def test_training_holds_the_lock_and_reading_needs_none(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.0)
    settings = [*SETTINGS, "stop.env_steps=128", "run=a"]
    run, child = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    trained, resumed, branched = LockingDisplay(run.path), LockingDisplay(run.path), LockingDisplay(child.path)
    starling_api.train("dqn-cartpole", settings, runs=tmp_path, display=trained)
    run.config_file.write_text(run.config_file.read_text().replace("env_steps: 128", "env_steps: 192"))
    starling_api.resume(run.path, display=resumed)
    with lock.locked(run.path, print):
        starling_api.load(run.path)
        evaluate_run(run.path, episodes=1, seed=0, which="newest", protocol="as-trained", warn=print)
        branch(run.path, load(str(run.config_file), ["run=b", "stop.env_steps=256"]), tmp_path, branched)
    assert min(trained.refused, resumed.refused, branched.refused) > 0
