"""Every stored step is read once, in order: against looking at each item by itself."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store_streams import RingModel, Stream, assert_same, make_envs, make_layout, stack_of

from starling import tree
from starling.experiment.saved_replay import steps as steps_module
from starling.experiment.saved_replay.columns import from_columns, step_specs, to_columns
from starling.experiment.saved_replay.steps import read_steps
from starling.replay.spec import TableSpec
from starling.replay.table import Table

ONCE = ("obs", "extras")
DONE = ("action", "rewards", "terminated", "truncated")


def slow_steps(table):
    """{(env row, step): what is known of it}, item by item; a step that was taken says more than a last observation."""
    found = {}
    items = table.ring.items()
    for slot, row, start, steps in zip(items.slots, items.rows, items.start, items.steps, strict=True):
        window = table.ring.gather(np.array([slot]))
        for t in range(steps + 1):
            entry = found.setdefault((int(row), int(start + t)), {"valid": False, "priority": 0.0})
            entry |= {name: tree.map(lambda leaf, t=t: leaf[t, 0], getattr(window, name)) for name in ONCE}
            if t < steps:
                entry |= {name: tree.map(lambda leaf, t=t: leaf[t, 0], getattr(window, name)) for name in DONE}
                entry["valid"] = True
            if t == 0:
                carry = tree.map(lambda leaf: leaf[0], window.carry)
                priority = float(table.priorities(np.array([slot]))[0])
                entry |= {"first": window.first[0, 0], "carry": carry, "priority": priority}
    return found


def filled_table(seed, layout, spec, rows, fragments, rng):
    table = Table(spec, layout, rows, seed=0, priority=lambda window: rng.random(window.rows) + 0.1)
    stream = Stream(make_envs(seed, rows, layout, "random", glitch=0.1), np.arange(rows), layout)
    for number in range(fragments):
        fragment = stream.fragment(spec.fragment)
        if number % 7 != 5:  # one is lost now and then
            table.insert(fragment)
    return table


def assert_equal_steps(steps, expected):
    """`steps` are those that the slow reading found, in the order of env row and time."""
    assert len(steps.valid) == len(expected)
    for i, ((row, _), entry) in enumerate(sorted(expected.items(), key=lambda pair: pair[0])):
        assert steps.row[i] == row
        for name, value in entry.items():
            got = tree.map(lambda leaf, i=i: leaf[i], getattr(steps, name))
            assert_same(tree.map(np.asarray, value), tree.map(np.asarray, got), name)
        if not entry["valid"]:
            assert not any(np.any(getattr(steps, name)[i]) for name in ("action", "terminated", "truncated"))


def test_a_ring_lists_its_items_by_env_row_and_time():
    layout, numbers = make_layout(None, carry=False), np.array([4, 1])
    spec = TableSpec("replay", "ring", 3, 4, 60, "prioritized", period=2, fragment=5)
    table = Table(spec, layout, 2, seed=0, priority=lambda window: 1.0 + window.action[0])
    model = RingModel(length=3, period=2, prefix=0, cells=30, history=0)
    stream = Stream(make_envs(0, 2, layout), numbers, layout)
    for number in range(20):
        table.insert(stream.fragment(5))
        model.append(numbers, stream.records, [number > 0] * 2)
    items = table.ring.items()
    columns = (items.slots, items.generation, items.rows, items.start, items.steps)
    found = [tuple(map(int, item)) for item in zip(*columns, strict=True)]
    assert {item[:2]: item[2:] for item in found} == model.sequences()
    assert [item[2:4] for item in found] == sorted(item[2:4] for item in found)
    expected = [1.0 + model.records[row][start]["action"] for _, _, row, start, _ in found]
    np.testing.assert_allclose(table.priorities(items.slots), expected)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 5),
    period=st.integers(1, 3),
    prefix=st.integers(0, 2),
    stack=st.sampled_from([None, stack_of(2, 1), stack_of(4, 0), stack_of(3, 2)]),
    carry=st.booleans(),
    sampler=st.sampled_from(["uniform", "prioritized"]),
    capacity=st.integers(20, 120),
)
def test_every_step_of_every_item_comes_once_and_in_order(
    seed, length, period, prefix, stack, carry, sampler, capacity
):
    period, prefix = min(period, length), min(prefix, length - 1)
    layout = make_layout(stack, carry)
    spec = TableSpec("replay", "ring", length, 4, capacity, sampler, period, prefix, fragment=5)
    with warnings.catch_warnings(action="ignore"):
        table = filled_table(seed, layout, spec, 2, 20, np.random.default_rng(seed))
    expected = slow_steps(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_module, "AT_ONCE", 16)
        pieces = list(read_steps(table))
    if not expected:
        assert not pieces
        return
    steps = tree.concat(pieces, axis=0)
    assert_equal_steps(steps, expected)
    columns = to_columns(steps, layout.stack)
    again = from_columns(columns, step_specs(layout), layout.stack)
    assert_same(dict(tree.items(steps)), dict(tree.items(again)))
    if stack is not None:
        assert columns["obs/image"].nbytes * stack.n == steps.obs["image"].nbytes
        assert len(columns["stack"]) < len(steps.valid) or stack.n == 1
