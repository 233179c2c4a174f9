"""Ctrl-C and SIGTERM, sent to a real process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from starling.runs import checkpoint
from starling.runs.folder import RunFolder
from starling.runs.metrics import read_rows
from starling.runs.signals import Interrupts

ENDLESS = ["ppo-cartpole", "stop.env_steps=100000000", "stop.return=null", "checkpoint.every=50000000", "log.every=500"]


@pytest.fixture
def running(tmp_path):
    """A run that has written rows and would go on for hours."""
    command = [sys.executable, "-m", "starling", "train", *ENDLESS, "run=a", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run = RunFolder(tmp_path / "a")
    deadline = time.monotonic() + 60
    try:
        while not (run.metrics_file.exists() and run.metrics_file.stat().st_size):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, run
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends_within_ten_seconds(running, number, code):
    process, run = running
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert err == ""
    assert f"finished: {number.name} received" in out
    assert f"starling resume {run.path}" in out
    chosen, _, _ = checkpoint.find(run.checkpoints)
    assert int(chosen.name.removeprefix("step-")) == read_rows(run.metrics_file)[-1]["env_steps"]


def test_a_second_signal_ends_at_once(running):
    process, _ = running
    os.kill(process.pid, signal.SIGSTOP)  # so that both arrive before it can act on either
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    started = time.monotonic()
    process.wait(timeout=5)
    assert process.returncode in (130, 143)
    assert time.monotonic() - started < 2


def test_a_closed_pipe_silences_the_display_and_not_the_run(tmp_path):
    command = [
        sys.executable,
        "-m",
        "starling",
        "train",
        "ppo-cartpole",
        "stop.env_steps=3000",
        "log.every=100",
        "run=a",
    ]
    process = subprocess.Popen([*command, "--runs", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=60)
    assert read_rows(RunFolder(tmp_path / "a").metrics_file)[-1]["env_steps"] >= 3000


def end_early(sent):
    with Interrupts() as interrupts:
        if sent:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.received == signal.SIGINT
        raise LookupError


@pytest.mark.parametrize(("sent", "ended"), [(True, KeyboardInterrupt), (False, LookupError)])
def test_a_signal_comes_again_where_an_exception_ends_the_watch_first(sent, ended):
    with pytest.raises(ended):
        end_early(sent)
