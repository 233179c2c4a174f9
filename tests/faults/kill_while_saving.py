"""Saves checkpoints in forked children and kills each at a random moment; test_kill.py runs it in its own process."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from starling.errors import UserError
from starling.frozen import freeze
from starling.runs import checkpoint
from starling.runs.checkpoint import Retention
from starling.segments import Joined, Segmented

RING = 4
"""Segments, of which every step changes one."""


def a_state(step):
    """Everything in it says which step it belongs to."""
    ages = [step - (step - i) % RING for i in range(RING)]
    parts = Segmented(tuple(Joined((np.full(100_000, age, np.int32).tobytes(),)) for age in ages))
    small = {"step": step, "w": np.full(1000, step)}
    return {"store": {"frames": np.full(500_000, step, np.int32), "ring": parts}, "learner": small}


def ages(ring):
    """The step that each segment is of."""
    contents = [np.frombuffer(part.read(), np.int32) for part in ring.parts]
    assert all((content == content[0]).all() for content in contents)
    return [int(content[0]) for content in contents]


def save_for_ever(root, step):
    while True:
        step += 1
        state = freeze(a_state(step))
        checkpoint.write(root, step, state, retention=Retention(newest=2, best=True), score=step)


def main(root, kills):
    random.seed(0)
    newest = 0
    interrupted = 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            save_for_ever(root, newest)
        time.sleep(random.uniform(0.01, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        interrupted += bool(list(root.glob(".unfinished-*")))
        try:
            folder, state, problems = checkpoint.find(root)
        except UserError:
            assert newest == 0, "a checkpoint was lost"
            continue
        assert not problems, problems
        step = state["learner"]["step"]
        assert step >= newest, "went back in time"
        assert folder.name == f"step-{step:012d}"
        assert (state["store"]["frames"] == step).all()
        assert (state["learner"]["w"] == step).all()
        assert ages(state["store"]["ring"]) == ages(a_state(step)["store"]["ring"])
        newest = step
    print(f"{kills} kills, {interrupted} in the middle of a save, newest {newest}")
    assert newest > 0
    assert interrupted >= kills // 4


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
