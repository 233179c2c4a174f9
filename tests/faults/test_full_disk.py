"""A disk that fills up during a run, and a run folder that disappears."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.traced_disk import TracedDisk
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import starling
from starling.cli.show import closing_lines
from starling.experiment import session
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

SETTINGS = [
    "net.torso.hidden=[16]",
    "env.num=2",
    "algo.learning_starts=64",
    "algo.fragment=16",
    "algo.capacity=2000",
    "algo.optimizer.schedule=null",
    "checkpoint.every=200",
    "log.every=10",
    "stop.env_steps=1600",
    "stop.return=null",
    "run=a",
]


class RealDisk:
    """A small file system, mounted for the test."""

    def __init__(self, path):
        self.path, self._filler = path, path / "filler"

    def fill(self):
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def empty(self):
        self._filler.unlink()


class SimulatedDisk:
    """A disk that rejects writes from some moment on, for machines where nothing can be mounted."""

    def __init__(self, path, monkeypatch):
        self.path, self._traced = path, TracedDisk(monkeypatch)

    def fill(self):
        self._traced.room = 0

    def empty(self):
        self._traced.room = None


@pytest.fixture(params=["real", "simulated"])
def disk(request, tmp_path, monkeypatch):
    if request.param == "simulated":
        yield SimulatedDisk(tmp_path, monkeypatch)
        return
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "starling-test", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield RealDisk(tmp_path)
    subprocess.run(["umount", str(tmp_path)], check=True)


class ActingDisplay:
    """A display that runs actions at certain env steps and records what it gets."""

    def __init__(self, **actions):
        self.rows, self.lines = [], []
        self._actions = sorted((int(step.removeprefix("at_")), act) for step, act in actions.items())

    def tick(self, status): ...

    def row(self, row):
        self.rows.append(row["env_steps"])
        while self._actions and row["env_steps"] >= self._actions[0][0]:
            self._actions.pop(0)[1]()

    def message(self, line):
        self.lines.append(line)

    def warnings(self, about):
        return [line for line in self.lines if line.startswith("warning") and about in line]


def newest(run):
    """The env steps of the newest checkpoint, in hundreds."""
    folder, _, problems = checkpoint.find(run.checkpoints)
    assert problems == []
    return int(folder.name.removeprefix("step-")) // 100


def wait_for(run, hundreds):
    """Wait until a checkpoint is completely written."""
    deadline = time.monotonic() + 60
    while not list(run.checkpoints.glob(f"step-*{hundreds}??")):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_training_survives_a_full_disk_without_loss(disk):
    run, kept = RunFolder(disk.path / "a"), []
    display = ActingDisplay(
        at_500=lambda: (wait_for(run, 4), disk.fill()),
        at_1100=lambda: (kept.append(newest(run)), disk.empty()),
    )
    result = starling.train("dqn-cartpole", SETTINGS, runs=disk.path, display=display)
    assert (result.exit_code, result.reason) == (0, "stop.env_steps=1,600 reached")
    assert kept == [4]
    assert len(display.warnings("cannot write a checkpoint")) == 1
    assert "No space left on device (it takes up to" in display.warnings("cannot write a checkpoint")[0]
    assert len(display.warnings("metrics.jsonl")) == 1
    assert "checkpoints can be written again" in display.lines
    assert [row["env_steps"] for row in read_rows(run.metrics_file)] == display.rows
    log = run.log_file.read_text()
    assert all(line in log for line in display.lines if not line.startswith("run:"))
    events = EventAccumulator(str(run.path))
    events.Reload()
    assert [event.step for event in events.Scalars("updates")] == display.rows
    assert newest(run) == 16
    assert not list(run.path.rglob(".unfinished*"))


def test_run_whose_last_checkpoint_cannot_be_written_fails_with_the_reason(disk):
    run = RunFolder(disk.path / "a")
    display = ActingDisplay(at_1500=lambda: (wait_for(run, 14), disk.fill()))
    result = starling.train("dqn-cartpole", SETTINGS, runs=disk.path, display=display)
    assert result.exit_code == 1
    assert result.reason.startswith("stop.env_steps=1,600 reached; failed: cannot write a checkpoint to")
    assert "No space left on device (it takes up to" in closing_lines(result)
    assert display.warnings("a checkpoint") == [], "training does not go on"
    if isinstance(disk, RealDisk):  # removing the partial checkpoint makes room for a line
        assert f"finished: {result.reason}" in run.log_file.read_text()
    disk.empty()
    assert newest(run) == 14
    assert starling.resume(run.path).exit_code == 0
    rows = [row["env_steps"] for row in read_rows(run.metrics_file)]
    assert rows == sorted(set(rows))
    assert rows[-1] >= 1600


def test_rows_are_on_disk_before_each_checkpoint(tmp_path, monkeypatch):
    traced = TracedDisk(monkeypatch)
    starling.train("dqn-cartpole", [*SETTINGS, "stop.env_steps=600"], runs=tmp_path)
    rows, saves, synced = str(tmp_path / "a" / "metrics.jsonl"), 0, False
    for kind, path, *rest in traced.operations:
        synced = synced or (kind, path) == ("sync", rows)
        if kind == "rename" and Path(rest[0]).name.startswith("step-"):
            assert synced
            saves, synced = saves + 1, False
    assert saves == 3


def test_files_of_a_run_have_the_default_mode(tmp_path):
    run = starling.train("dqn-cartpole", [*SETTINGS, "stop.env_steps=200"], runs=tmp_path).folder
    (tmp_path / "plain").touch()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {path.stat().st_mode for path in files} == {(tmp_path / "plain").stat().st_mode}


def remove(folder):
    shutil.rmtree(folder)


def move(folder):
    folder.rename(folder.with_name("elsewhere"))


NEVER = 10**9


@pytest.mark.parametrize(
    ("lose", "at", "ticks", "rows", "saves"),
    [
        pytest.param(remove, 500, 0, 500, NEVER, id="a tick notices"),
        pytest.param(remove, 510, NEVER, 10, NEVER, id="a row notices"),
        pytest.param(move, 600, NEVER, 200, 600, id="a checkpoint notices"),
        pytest.param(remove, 1600, NEVER, 200, NEVER, id="the end notices"),
    ],
)
def test_run_whose_folder_disappears_fails_and_does_not_create_it_again(
    tmp_path, monkeypatch, lose, at, ticks, rows, saves
):
    monkeypatch.setattr(session, "TICK_SECONDS", ticks)
    display = ActingDisplay(**{f"at_{at}": lambda: lose(tmp_path / "a")})
    settings = [*SETTINGS, f"log.every={rows}", f"checkpoint.every={saves}"]
    result = starling.train("dqn-cartpole", settings, runs=tmp_path, display=display)
    assert result.exit_code == 1
    assert result.env_steps < at + 20
    assert f"{tmp_path / 'a'} is gone: it was deleted or moved, so the run" in result.reason
    assert not (tmp_path / "a").exists()
    assert "is gone" in closing_lines(result)
    assert "starling resume" not in closing_lines(result)
    assert display.warnings("cannot write") == []
