"""Predicted bytes compared with those of real tables."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from support.store_streams import RandomEnv, Stream, make_envs, make_layout

from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.replay.table_bytes import table_bytes
from starling.types import ArraySpec, StackSpec

RING = TableSpec("replay", "ring", length=3, batch=8, capacity=4000, fragment=16)
SLOTS = TableSpec("queue", "slots", length=16, batch=8, capacity=60, fragment=16)
NUM_ENVS = 4
STACK = StackSpec("image", axis=1, n=3)


def array_bytes(value, seen=None):
    """Bytes of all arrays and bytes objects inside an object; arrays that share memory count once."""
    seen = set() if seen is None else seen
    if isinstance(value, bytes):
        return sys.getsizeof(value)
    if isinstance(value, np.ndarray):
        owner = id(value if value.base is None else value.base)
        known = owner in seen
        seen.add(owner)
        return 0 if known else value.nbytes
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return sum(array_bytes(part, seen) for part in (*inside, *getattr(value, "__dict__", {}).values()))


def filled(spec, layout, steps, end=0.0):
    table = Table(spec, layout, NUM_ENVS, seed=0)
    stream = Stream(make_envs(0, NUM_ENVS, layout, end=end), np.arange(NUM_ENVS), layout)
    for _ in range(steps // (NUM_ENVS * spec.fragment)):
        table.insert(stream.fragment(spec.fragment))
    return table


SPECS = [RING, SLOTS, replace(RING, capacity=5), replace(SLOTS, capacity=7, length=3, fragment=3)]
KINDS = [(spec, sampler) for spec in SPECS for sampler in ("uniform", "prioritized")]
KINDS += [(spec, "fifo") for spec in SPECS if spec.storage == "slots"]


@pytest.mark.parametrize(("spec", "sampler"), KINDS)
def test_prediction_is_exact_without_carries_and_stacks(spec, sampler):
    spec, layout = replace(spec, sampler=sampler), make_layout(carry=False)
    predicted, table = table_bytes(spec, layout, NUM_ENVS, 6400), filled(spec, layout, 6400)
    listed_as_free = 8 * table.size if spec.storage == "slots" else 0  # the list of free slots has become shorter
    held, saved = array_bytes(table) + listed_as_free, array_bytes(table.get_state())
    if sampler == "prioritized":
        assert 0 <= predicted.held - held <= 1024
        assert predicted.saved == saved
    else:
        assert predicted.held == held
        assert predicted.saved == saved + 8 * (table._storage.slots - table.size)  # cells where no sequence begins yet


@pytest.mark.parametrize("end", [0.0, 0.005])
@pytest.mark.parametrize("period", [1, 5])
def test_prediction_with_carries_and_stacks_is_a_close_upper_bound(end, period):
    spec, layout = replace(RING, period=period, length=5), make_layout(stack=STACK)
    if period == 5:  # images dominate, so that storing every frame once makes up most of the size
        layout.obs["image"] = ArraySpec((16, 3 * 16, 16), np.dtype(np.uint8))
    table = filled(spec, layout, 6400, end)
    predicted = table_bytes(spec, layout, NUM_ENVS, 6400)
    for needed, predicted_bytes in (
        (array_bytes(table), predicted.held),
        (array_bytes(table.get_state()), predicted.saved),
    ):
        assert 0.95 * needed <= predicted_bytes <= 1.4 * needed


def nearly_black(env):
    """A frame with random values in one byte of fourteen, which compresses to about a twelfth."""
    frame = np.zeros(16**3, np.uint8)
    frame[: len(frame) // 14] = env.rng.integers(1, 255, len(frame) // 14)
    return frame.reshape(16, 16, 16)


def test_compressed_size_is_estimated(monkeypatch):
    monkeypatch.setattr(RandomEnv, "_frame", nearly_black)
    spec, layout = replace(RING, codec="zstd"), make_layout(stack=STACK, carry=False)
    layout.obs["image"] = ArraySpec((16, 3 * 16, 16), np.dtype(np.uint8))
    table = filled(spec, layout, 6400, end=0.005)
    predicted = table_bytes(spec, layout, NUM_ENVS, 6400)
    for needed, predicted_bytes in (
        (array_bytes(table), predicted.held),
        (array_bytes(table.get_state()), predicted.saved),
    ):
        assert 0.7 * needed <= predicted_bytes <= 1.5 * needed
    assert predicted.held < 0.2 * table_bytes(RING, layout, NUM_ENVS, 6400).held


def test_checkpoint_of_a_partly_filled_table_has_the_size_of_that_part():
    layout = make_layout(carry=False)
    spec = replace(RING, sampler="uniform")
    table = filled(spec, layout, 640)
    predicted = table_bytes(spec, layout, NUM_ENVS, 640)
    real = array_bytes(table.get_state())
    assert real <= predicted.saved <= 1.05 * real
    assert predicted.saved < 0.25 * predicted.held


def test_size_of_a_huge_table_is_computed_without_allocating_it():
    huge = table_bytes(replace(RING, capacity=10**18), make_layout(), NUM_ENVS, 10**18)
    assert huge.held > 10**19
