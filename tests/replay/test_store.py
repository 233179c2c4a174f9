"""Tables and limiter together, as used by actors and learners."""

import numpy as np
import pytest

from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.types import ArraySpec, Fragment, Layout, RunLength, Trajectory

NUM_ENVS = 2
LAYOUT = Layout(
    obs=ArraySpec((1,), np.dtype(np.float32)),
    action=ArraySpec((), np.dtype(np.int64)),
    rewards=("extrinsic",),
    extras={},
    carry={},
)


def fragment(sequence, length=4):
    """Steps of one endless episode whose observation is the time step."""
    start = (sequence - 1) * length
    flags = np.zeros((length, NUM_ENVS), bool)
    first = np.zeros((length + 1, NUM_ENVS), bool)
    first[0] = sequence == 1
    steps = Trajectory(
        obs=np.broadcast_to(
            np.arange(start, start + length + 1, dtype=np.float32)[:, None, None], (length + 1, NUM_ENVS, 1)
        ),
        first=first,
        action=np.zeros((length, NUM_ENVS), np.int64),
        rewards={"extrinsic": np.ones((length, NUM_ENVS), np.float32)},
        terminated=flags,
        truncated=flags,
        valid=~flags,
        extras={},
        carry={},
        policy_version=np.zeros(NUM_ENVS, np.int64),
    )
    return Fragment(steps, np.arange(NUM_ENVS), None, 0, sequence)


def make_store(**spec):
    base = {"name": "replay", "storage": "ring", "length": 1, "batch": 8, "capacity": 200, "fragment": 4, "min_size": 8}
    specs = [TableSpec(**{**base, **spec})]
    return Store(specs, LAYOUT, num_envs=NUM_ENVS, seed=0, priority=lambda sequence: None, length=RunLength(1000))


def fill(store, sequences):
    for sequence in sequences:
        assert store.begin(NUM_ENVS)
        store.insert(fragment(sequence))


def test_ring_reports_its_fill_level_in_steps():
    store = make_store(length=4, period=4)
    fill(store, range(1, 4))
    metrics = store.metrics()
    assert (metrics["store/replay/cells"], metrics["store/replay/capacity"]) == (3 * 4 * NUM_ENVS, 200)
    assert metrics["store/replay/size"] == 3 * NUM_ENVS  # sequences
    for sequence in range(4, 60):
        store.insert(fragment(sequence))
    assert store.metrics()["store/replay/cells"] == 200
    assert store.metrics()["store/replay/size"] < 200 / 4


def test_queue_reports_its_fill_level_in_fragments():
    store = make_store(storage="slots", length=4, capacity=10, batch=2, min_size=1)
    fill(store, range(1, 3))
    metrics = store.metrics()
    assert metrics["store/replay/size"] == 2 * NUM_ENVS
    assert not {"store/replay/cells", "store/replay/capacity"} & metrics.keys()


def drain(store):
    samples = []
    while (sample := store.sample()) is not None:
        store.update_priorities(sample.keys, None)
        samples.append(sample)
    return samples


def test_updates_follow_env_steps_exactly():
    store = make_store(updates_per_step=0.5)
    counts = []
    for sequence in range(1, 8):
        fill(store, [sequence])
        counts.append(len(drain(store)))
    # The first at min_size, then one for every second of the 8 steps of a fragment.
    assert counts == [1, 4, 4, 4, 4, 4, 4]
    store.check_valid()


def test_prefetched_batches_are_distinct_complete_and_all_used():
    store = make_store(updates_per_step=1.0)
    fill(store, range(1, 3))
    drain(store)
    fill(store, [3])
    samples = drain(store)
    assert len(samples) == 8
    for sample in samples:
        assert sample.trajectory.obs.shape == (2, 8, 1)
        np.testing.assert_array_equal(sample.trajectory.obs[1], sample.trajectory.obs[0] + 1)
        np.testing.assert_array_equal(sample.keys.slot % 100, sample.trajectory.obs[0, :, 0])
    assert len({tuple(sample.keys.slot) for sample in samples}) == 8
    assert not store._drawn_ahead


def test_duplicate_fragment_counts_once():
    store = make_store(updates_per_step=0.5)
    fill(store, [1])
    store.insert(fragment(1))
    assert store.env_steps == 8
    assert store.limiter.get_state()["in_flight"] == 0
    assert store.metrics()["store/replay/duplicate"] == 1


@pytest.mark.parametrize("with_tables", [True, False])
def test_restored_store_continues(with_tables):
    store = make_store(updates_per_step=0.5)
    fill(store, range(1, 4))
    drain(store)
    other = make_store(updates_per_step=0.5)
    other.set_state(store.get_state(with_tables))
    assert other.env_steps == store.env_steps
    if with_tables:
        fill(store, [4])
        fill(other, [4])
        for one, two in zip(drain(store), drain(other), strict=True):
            np.testing.assert_array_equal(one.keys.slot, two.keys.slot)
            np.testing.assert_array_equal(one.trajectory.obs, two.trajectory.obs)
    else:
        assert other.sample() is None
