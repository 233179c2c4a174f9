"""Make and damage checkpoints."""

import numpy as np

from starling.experiment.run_folder import checkpoint
from starling.state_io import Joined, Segmented, freeze

RING = 4
"""Number of segments in `changing_state`; every save changes one."""


def save(root, step, state, **settings):
    return checkpoint.write(root, step, freeze(state), **settings)


def changing_state(serial, size=300):
    """A state whose values tell which save wrote them."""
    serials = [serial - (serial - i) % RING for i in range(RING)]
    parts = Segmented(tuple(Joined((np.full(size, saved_by, np.int32).tobytes(),)) for saved_by in serials))
    learner_state = {"serial": serial, "w": np.full(100, serial)}
    return {"store": {"frames": np.full(size, serial, np.int32), "ring": parts}, "learner": learner_state}


def ages(ring):
    """The save that wrote each segment."""
    contents = [np.frombuffer(part.read(), np.int32) for part in ring.parts]
    assert all((content == content[0]).all() for content in contents)
    return [int(content[0]) for content in contents]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
