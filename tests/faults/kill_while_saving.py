"""Saves checkpoints in forked children and kills each one before a different call to the disk.

test_kill.py runs it in a separate process.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.checkpoint_files import ages, changing_state, save
from support.traced_disk import TracedDisk

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention


class KillingDisk(TracedDisk):
    """Kills this process before a certain call. Written data outlives a process, so syncs are only counted."""

    def __init__(self, calls):
        super().__init__()
        self._left = calls

    def before(self, kind, path):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(self, descriptor):
        self.before("sync", descriptor)


def save_until_killed(root, serial, calls):
    KillingDisk(calls)
    checkpoint.recover(root)
    while True:
        serial += 1
        save(root, serial // 2, changing_state(serial), retention=Retention(newest=2, best=True), score=serial)


def main(root, kills):
    newest = interrupted = 0
    for kill in range(kills):
        child = os.fork()
        if child == 0:
            save_until_killed(root, newest, calls=20 + 7 * kill)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        interrupted += bool(
            [*root.glob(".unfinished-*"), *root.glob(".replaced-*"), *root.glob("segments/.unfinished")]
        )
        checkpoint.recover(root)
        try:
            folder, state, problems = checkpoint.find(root)
        except UserError:
            assert newest == 0, "a checkpoint was lost"
            continue
        assert not problems, problems
        serial = state["learner"]["serial"]
        assert serial >= newest, "went back in time"
        assert folder.name == f"step-{serial // 2:012d}"
        assert (state["store"]["frames"] == serial).all()
        assert (state["learner"]["w"] == serial).all()
        assert ages(state["store"]["ring"]) == ages(changing_state(serial)["store"]["ring"])
        newest = serial
    print(f"{kills} kills, {interrupted} in the middle of a save, newest {newest}")
    assert newest > kills
    assert interrupted > kills // 2


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
