"""Saves checkpoints in forked children and kills each at a random moment; test_kill.py runs it in its own process."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from starling.errors import UserError
from starling.runs import checkpoint
from starling.runs.checkpoint import Retention


def a_state(step):
    """Everything in it says which step it belongs to."""
    return {"store": {"frames": np.full(500_000, step, np.int32)}, "learner": {"step": step, "w": np.full(1000, step)}}


def save_for_ever(root, step):
    while True:
        step += 1
        checkpoint.save(root, step, a_state(step), retention=Retention(newest=2, best=True), score=step)


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
        newest = step
    print(f"{kills} kills, {interrupted} in the middle of a save, newest {newest}")
    assert newest > 0
    assert interrupted >= kills // 4


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
