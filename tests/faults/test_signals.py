"""Ctrl-C, SIGTERM, and SIGHUP, sent to a real process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.process_exit import Interrupts

pytestmark = pytest.mark.slow
TIMEOUT = 120
"""Seconds within which a busy machine does what it should."""
ENDLESS = ["ppo-cartpole", "stop.env_steps=100000000", "stop.return=null", "checkpoint.every=50000000", "log.every=500"]


@pytest.fixture
def start(tmp_path):
    """`start(settings, before=(…))`: a training process in its own process group, and its run."""
    started = []

    def begin(*settings, before=()):
        command = [*before, sys.executable, "-m", "starling", "train", *ENDLESS, *settings, "run=a"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        started.append(subprocess.Popen([*command, "--runs", str(tmp_path)], **pipes))
        return started[-1], RunFolder(tmp_path / "a")

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def wait_for(process, condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_rows(run):
    return run.metrics_file.exists() and run.metrics_file.stat().st_size > 0


@pytest.fixture
def running(start):
    """A run that has written rows and would continue for hours."""
    process, run = start()
    wait_for(process, lambda: has_rows(run))
    return process, run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_saves_the_run_and_exits(running, number, code):
    process, run = running
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code
    assert err == ""
    assert f"finished: {number.name} received" in out
    assert f"starling resume {run.path}" in out
    chosen, _, _ = checkpoint.find(run.checkpoints)
    assert int(chosen.name.removeprefix("step-")) == read_rows(run.metrics_file)[-1]["env_steps"]


def test_second_signal_exits_at_once(running):
    process, _ = running
    os.kill(process.pid, signal.SIGSTOP)  # so that both arrive before the process handles either
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    process.wait(timeout=TIMEOUT)
    assert process.returncode in (130, 143)


def test_signal_that_is_ignored_at_the_start_stays_ignored(start):
    """As with nohup, whose command continues when the terminal is closed."""
    process, run = start(before=("nohup",))
    wait_for(process, lambda: has_rows(run))
    process.send_signal(signal.SIGHUP)
    size = run.metrics_file.stat().st_size
    wait_for(process, lambda: run.metrics_file.stat().st_size > size)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143
    assert "SIGHUP" not in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_to_the_process_group_is_handled_by_the_main_process(start, number, code):
    process, run = start("runtime=processes", "actors=2", "inference=central")
    wait_for(process, lambda: has_rows(run))
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (code, "")
    assert "died" not in out + run.log_file.read_text()
    assert checkpoint.newest_sound(run.checkpoints) is not None


@pytest.mark.parametrize("settings", [[], ["runtime=processes", "actors=1"]])
def test_signal_ends_the_last_evaluation(start, settings):
    """An evaluation of a million episodes, which then gives no score."""
    process, run = start(*settings, "stop.updates=2", "eval.every=100000000", "eval.episodes=1000000")
    wait_for(process, lambda: list(run.checkpoints.glob("step-*")))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (143, "")
    assert "finished: SIGTERM received" in out
    assert not any("eval/return" in row for row in read_rows(run.metrics_file))


@pytest.mark.parametrize("settings", [[], ["learners=2", "actors=2"]])
def test_signal_right_after_the_folder_is_created_leaves_a_resumable_run(start, settings):
    process, run = start(*settings)
    wait_for(process, run.path.exists)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (143, "")
    assert checkpoint.newest_sound(run.checkpoints) is not None


IMPORTING = """
import os, sys

class Signal:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Signal())
from starling.__main__ import main

sys.argv[1:] = ["train", "ppo-cartpole"]
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("module", ["typer", "torch"])
def test_signal_during_startup_exits_without_a_traceback(module, number, code, tmp_path):
    program = IMPORTING.format(module=module, number=int(number))
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (code, "", "")


def test_closed_pipe_stops_the_display_but_not_the_run(tmp_path):
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
    process.wait(timeout=TIMEOUT)
    assert read_rows(RunFolder(tmp_path / "a").metrics_file)[-1]["env_steps"] >= 3000


def end_early(sent):
    with Interrupts() as interrupts:
        if sent:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.received == signal.SIGINT
        raise LookupError


@pytest.mark.parametrize(("sent", "ended"), [(True, KeyboardInterrupt), (False, LookupError)])
def test_pending_signal_is_raised_again_if_an_exception_ends_its_handling(sent, ended):
    with pytest.raises(ended):
        end_early(sent)
