"""Batches and states passed between processes through shared memory."""

import numpy as np

from starling import tree
from starling.replay.spec import TableSpec
from starling.runtime.batch_buffer import BatchBuffer, BatchPort, batch_spec
from starling.runtime.shared_memory import SharedBytes
from starling.state_io import pack, unpack
from starling.types import ArraySpec, Keys, Layout, Sample

LAYOUT = Layout(
    obs=ArraySpec((2,), np.dtype(np.float32)),
    action=ArraySpec((), np.dtype(np.int64)),
    rewards=("extrinsic",),
    extras={"q": ArraySpec((3,), np.dtype(np.float32))},
    carry={},
)
TABLE = TableSpec("replay", "ring", length=2, batch=4, capacity=100)


def make_sample(seed):
    rng = np.random.default_rng(seed)
    steps = tree.map(lambda s: rng.integers(0, 2, s.shape).astype(s.dtype), LAYOUT.trajectory(2, 4))
    ids = rng.integers(0, 100, (4, 4))
    return Sample(steps, Keys(*ids), rng.random(4), rng.integers(1, 9, 4), ids[1])


def test_batch_arrives_unchanged_and_its_slot_is_reused_only_after_learning():
    port = BatchPort(batch_spec([TABLE], LAYOUT), 2)
    buffer, learner_slots = BatchBuffer(port), port.slots()
    samples = [make_sample(0), make_sample(1)]
    for i, sample in enumerate(samples):
        assert buffer.free[0] == i
        buffer.write(i, sample)
    assert buffer.free == []
    assert buffer.out == [0, 1]
    for slot, sample in zip(learner_slots, samples, strict=True):
        for (name, received), (_, sent) in zip(tree.items(slot.trajectory), tree.items(sample.trajectory), strict=True):
            np.testing.assert_array_equal(received, sent, err_msg=name)
        np.testing.assert_array_equal(slot.probability, sample.probability)
        np.testing.assert_array_equal(slot.table_size, sample.table_size)
        np.testing.assert_array_equal(slot.source, sample.source)
    learner_slots[0].priorities[:] = [4, 3, 2, 1]
    keys, priorities = buffer.update_priorities(0, with_priorities=True)
    assert keys is samples[0].keys
    learner_slots[0].priorities[:] = 0
    np.testing.assert_array_equal(priorities, [4, 3, 2, 1])
    assert buffer.free == [0]
    assert buffer.out == [1]
    assert buffer.update_priorities(1, with_priorities=False)[1] is None


def test_last_write_replaces_earlier_ones():
    shared_bytes = SharedBytes(b"a long first one")
    assert shared_bytes.read() == shared_bytes.read() == b"a long first one"
    shared_bytes.write(b"short")
    assert shared_bytes.read() == b"short"


def test_packed_state_round_trips():
    state = {"version": 3, "rng": {"state": 2**100}, "w": np.arange(6.0).reshape(2, 3), "none": None, "e": {}}
    unpacked = unpack(pack(state))
    np.testing.assert_array_equal(unpacked.pop("w"), state.pop("w"))
    assert unpacked == state
