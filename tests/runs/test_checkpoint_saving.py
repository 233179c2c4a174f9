"""Checkpoints beside training: what is saved is what was there at that moment, and nothing goes wrong unheard."""

import resource
import threading
import time

import numpy as np
import pytest
import torch

from starling.errors import UserError
from starling.runs import checkpoint
from starling.runs.checkpoint import Retention
from starling.runs.saving import Saver
from starling.segments import Joined, Segmented


class Gate(Joined):
    """A segment that cannot be read until the gate is open."""

    def __init__(self, content):
        super().__init__((content,))
        self.open = threading.Event()

    def read(self):
        assert self.open.wait(20)
        return super().read()


@pytest.fixture
def saver(tmp_path):
    made = Saver(tmp_path / "checkpoints", Retention(newest=3))
    yield made
    made.close()


def steps_of(root):
    return [int(folder.name.removeprefix("step-")) for folder in sorted(root.glob("checkpoints/step-*"))]


def test_training_goes_on_while_a_checkpoint_is_written(saver, tmp_path):
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


def test_a_checkpoint_waits_for_the_one_before(saver, tmp_path):
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
    """The system refuses to make a file larger than 10 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def check_for_a_while(saver):
    for _ in range(2000):
        saver.check()
        time.sleep(0.01)


@pytest.mark.parametrize("large", [Segmented((Joined((bytes(20_000),)),)), np.zeros(20_000, np.uint8)])
def test_a_checkpoint_that_cannot_be_written_is_said_once_and_the_last_one_stays(saver, tmp_path, tiny_files, large):
    saver.save(lambda: (7, {"learner": {}}), None)
    saver.save(lambda: (8, {"learner": {"large": large}}), None)
    with pytest.raises(UserError, match=r"cannot write a checkpoint to .*: File too large; make room"):
        check_for_a_while(saver)
    saver.check()
    assert checkpoint.find(tmp_path / "checkpoints")[0].name == "step-000000000007"
    saver.save(lambda: (9, {"learner": {}}), None)
    saver.finish()
    assert steps_of(tmp_path) == [7, 9]
