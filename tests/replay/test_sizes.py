"""Predicted bytes against those of real tables."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from support.store_streams import RandomEnv, Stream, make_envs, make_layout

from starling.replay.sizes import table_bytes
from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.types import ArraySpec, StackSpec

RING = TableSpec("replay", "ring", length=3, batch=8, capacity=4000, fragment=16)
SLOTS = TableSpec("queue", "slots", length=16, batch=8, capacity=60, fragment=16)
ROWS = 4
STACK = StackSpec("image", axis=1, n=3)


def array_bytes(thing, seen=None):
    """Bytes of all arrays and strings of bytes in an object; of two views of one array only the first counts."""
    seen = set() if seen is None else seen
    if isinstance(thing, bytes):
        return sys.getsizeof(thing)
    if isinstance(thing, np.ndarray):
        owner = id(thing if thing.base is None else thing.base)
        known = owner in seen
        seen.add(owner)
        return 0 if known else thing.nbytes
    inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, tuple | list) else ()
    return sum(array_bytes(part, seen) for part in (*inside, *getattr(thing, "__dict__", {}).values()))


def filled(spec, layout, steps, end=0.0):
    table = Table(spec, layout, ROWS, seed=0)
    stream = Stream(make_envs(0, ROWS, layout, end=end), np.arange(ROWS), layout)
    for _ in range(steps // (ROWS * spec.fragment)):
        table.insert(stream.fragment(spec.fragment))
    return table


SPECS = [RING, SLOTS, replace(RING, capacity=5), replace(SLOTS, capacity=7, length=3, fragment=3)]
KINDS = [(spec, sampler) for spec in SPECS for sampler in ("uniform", "prioritized")]
KINDS += [(spec, "fifo") for spec in SPECS if spec.storage == "slots"]


@pytest.mark.parametrize(("spec", "sampler"), KINDS)
def test_without_carries_and_stacks_the_bytes_are_exact(spec, sampler):
    spec, layout = replace(spec, sampler=sampler), make_layout(carry=False)
    predicted, table = table_bytes(spec, layout, ROWS, 6400), filled(spec, layout, 6400)
    listed_as_free = 8 * table.size if spec.storage == "slots" else 0  # the list has become shorter since the start
    held, saved = array_bytes(table) + listed_as_free, array_bytes(table.get_state())
    if sampler == "prioritized":
        assert 0 <= predicted.held - held <= 1024
        assert predicted.saved == saved
    else:
        assert predicted.held == held
        assert predicted.saved == saved + 8 * (table._storage.slots - table.size)  # cells that begin no window yet


@pytest.mark.parametrize("end", [0.0, 0.005])
@pytest.mark.parametrize("period", [1, 5])
def test_carries_and_stacks_are_bounded_from_above_and_not_by_much(end, period):
    spec, layout = replace(RING, period=period, length=5), make_layout(stack=STACK)
    if period == 5:  # images outweigh all else, so that keeping every frame once is most of the sum
        layout.obs["image"] = ArraySpec((16, 3 * 16, 16), np.dtype(np.uint8))
    table = filled(spec, layout, 6400, end)
    predicted = table_bytes(spec, layout, ROWS, 6400)
    for needed, said in ((array_bytes(table), predicted.held), (array_bytes(table.get_state()), predicted.saved)):
        assert 0.95 * needed <= said <= 1.4 * needed


def nearly_black(row):
    """A frame of which one byte in fourteen is news: compressed it is about a twelfth."""
    frame = np.zeros(16**3, np.uint8)
    frame[: len(frame) // 14] = row.rng.integers(1, 255, len(frame) // 14)
    return frame.reshape(16, 16, 16)


def test_what_is_compressed_is_estimated(monkeypatch):
    monkeypatch.setattr(RandomEnv, "_frame", nearly_black)
    spec, layout = replace(RING, codec="zstd"), make_layout(stack=STACK, carry=False)
    layout.obs["image"] = ArraySpec((16, 3 * 16, 16), np.dtype(np.uint8))
    table = filled(spec, layout, 6400, end=0.005)
    predicted = table_bytes(spec, layout, ROWS, 6400)
    for needed, said in ((array_bytes(table), predicted.held), (array_bytes(table.get_state()), predicted.saved)):
        assert 0.7 * needed <= said <= 1.5 * needed
    assert predicted.held < 0.2 * table_bytes(RING, layout, ROWS, 6400).held


def test_a_checkpoint_of_a_run_that_fills_a_part_is_as_small_as_that_part():
    layout = make_layout(carry=False)
    spec = replace(RING, sampler="uniform")
    table = filled(spec, layout, 640)
    predicted = table_bytes(spec, layout, ROWS, 640)
    real = array_bytes(table.get_state())
    assert real <= predicted.saved <= 1.05 * real
    assert predicted.saved < 0.25 * predicted.held


def test_a_table_of_any_size_is_only_a_number():
    huge = table_bytes(replace(RING, capacity=10**18), make_layout(), ROWS, 10**18)
    assert huge.held > 10**19
