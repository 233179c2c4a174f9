"""Saving checkpoints during training: they are consistent snapshots, and failures are reported."""

import re
import resource
import shutil
import threading
import time

import numpy as np
import pytest
import torch
from support.traced_disk import TracedDisk

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.saving import Saver
from starling.state_io import Joined, Segmented


class Gate(Joined):
    """A segment that cannot be read until the gate is open."""

    def __init__(self, content):
        super().__init__((content,))
        self.open = threading.Event()

    def read(self):
        assert self.open.wait(20)
        return super().read()


@pytest.fixture
def said():
    return []


@pytest.fixture
def saver(tmp_path, said):
    made = Saver(tmp_path / "checkpoints", Retention(newest=3), said.append)
    yield made
    made.close()


def steps_of(root):
    return [int(folder.name.removeprefix("step-")) for folder in sorted(root.glob("checkpoints/step-*"))]


def test_training_continues_while_a_checkpoint_is_written(saver, tmp_path):
    gate, weights, lengths = Gate(b"ring"), torch.zeros(3), [1, 2]
    saver.save(lambda: (7, {"learner": {"w": weights, "n": lengths, "ring": Segmented((gate,))}}), None)
    weights += 1
    lengths.append(3)
    assert steps_of(tmp_path) == []
    assert saver.metrics().keys() == {"time/checkpoint_stall"}
    gate.open.set()
    saver.finish()
    state = checkpoint.find(tmp_path / "checkpoints")[1]["learner"]
    assert state["w"].tolist() == [0, 0, 0]
    assert state["n"] == [1, 2]
    assert 0 <= saver.metrics()["time/checkpoint_stall"] <= saver.metrics()["time/checkpoint"]


def test_checkpoint_waits_for_the_previous_one(saver, tmp_path):
    gate, seen = Gate(b"ring"), []

    def take_state():
        seen.append(steps_of(tmp_path))
        return 8, {"learner": {}}

    saver.save(lambda: (7, {"learner": {"ring": Segmented((gate,))}}), None)
    threading.Timer(0.1, gate.open.set).start()
    saver.save(take_state, None)
    saver.finish()
    assert seen == [[7]]
    assert steps_of(tmp_path) == [7, 8]


@pytest.fixture
def tiny_files():
    """Let the system refuse files larger than 10 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_until_written(saver):
    """Poll until the checkpoint is written, as a session does."""
    deadline = time.monotonic() + 20
    while saver._writing is not None:
        assert time.monotonic() < deadline
        saver.check()
        time.sleep(0.001)


@pytest.mark.parametrize("large", [Segmented((Joined((bytes(20_000),)),)), np.zeros(20_000, np.uint8)])
def test_failing_checkpoints_cause_one_warning_and_the_last_one_stays(saver, said, tmp_path, tiny_files, large):
    saver.save(lambda: (7, {"learner": {}}), None)
    for step in (8, 9):
        saver.save(lambda step=step: (step, {"learner": {"large": large}}), None)
        check_until_written(saver)
        failure = f"cannot write a checkpoint to {tmp_path / 'checkpoints'}: File too large"
        assert saver.failure == failure
        assert said == [f"warning: {failure}; training goes on and tries again at the next checkpoint: make room"]
        assert checkpoint.find(tmp_path / "checkpoints")[0].name == "step-000000000007"
    saver.save(lambda: (10, {"learner": {}}), None)
    check_until_written(saver)
    assert saver.failure is None
    assert said[1:] == ["checkpoints can be written again"]
    assert steps_of(tmp_path) == [7, 10]
    saver.save(lambda: (11, {"learner": {"large": large}}), None)
    saver.save(lambda: (12, {"learner": {}}), None)
    assert len(said) == 3, "new failures cause another warning"


def test_full_disk_error_has_the_needed_and_free_space(saver, tmp_path, monkeypatch):
    TracedDisk(monkeypatch, room=10_000)
    large = {"array": np.zeros(200_000, np.uint8), "ring": Segmented((Joined((bytes(300_000),)),))}
    saver.save(lambda: (7, {"learner": large}), None)
    saver.finish()
    assert re.search(r"No space left on device \(it takes up to 0\.5 MB, and .* MB is free\)$", saver.failure)


def test_failure_of_the_last_checkpoint_is_returned_without_a_warning(saver, said, tmp_path):
    saver.save(lambda: (7, {"learner": {}}), None)
    saver.finish()
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("in the way")
    saver.save(lambda: (8, {"learner": {}}), None)
    saver.finish()
    assert saver.failure.endswith("checkpoints: Not a directory")
    assert said == []
