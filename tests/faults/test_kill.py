"""Real processes that are killed: an interrupted run can be resumed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("STARLING_KILLS", "2"))
"""How often the training run is killed; 20 takes about two minutes."""


def test_save_killed_at_any_moment_leaves_a_sound_checkpoint(tmp_path):
    script = Path(__file__).with_name("kill_while_saving.py")
    subprocess.run([sys.executable, script, tmp_path, "40"], check=True, timeout=120)


def starling(*arguments):
    return subprocess.Popen([sys.executable, "-m", "starling", *map(str, arguments)], stdout=subprocess.DEVNULL)


def test_training_killed_repeatedly_reaches_its_end(tmp_path):
    """There is a checkpoint every 40 steps, so that most kills happen while one is written."""
    run = RunFolder(tmp_path / "a")
    settings = [
        "checkpoint.every=40",
        "stop.env_steps=1000000",
        "algo.learning_starts=100",
        "algo.fragment=20",
        "run=a",
    ]
    process = starling("train", "dqn-cartpole", *settings, "--runs", tmp_path)
    rng, reached = random.Random(0), 0
    for kill in range(KILLS):
        if kill:
            process = starling("resume", run.path)
        wait_for_checkpoint_after(run, reached, process)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        reached = newest(run)
    config = run.config_file.read_text()
    run.config_file.write_text(config.replace("env_steps: 1000000", f"env_steps: {newest(run) + 100}"))
    assert starling("resume", run.path).wait() == 0
    rows = [row["env_steps"] for row in read_rows(run.metrics_file)]
    assert rows == sorted(rows)


def newest(run):
    return max((int(f.name.removeprefix("step-")) for f in run.checkpoints.glob("step-*")), default=0)


def wait_for_checkpoint_after(run, step, process):
    deadline = time.monotonic() + 60
    while newest(run) <= step:
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "no new checkpoint within a minute"
        time.sleep(0.002)
