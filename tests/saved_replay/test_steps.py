"""Every stored step is read once, in order, compared with reading each item separately."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store_streams import RingModel, Stream, assert_same, make_envs, make_layout, stack_of

from starling import tree
from starling.experiment.saved_replay import steps as steps_module
from starling.experiment.saved_replay.step_columns import from_columns, step_specs, to_columns
from starling.experiment.saved_replay.steps import read_steps
from starling.replay.spec import TableSpec
from starling.replay.table import Table

OBS_FIELDS = ("obs", "extras")
STEP_FIELDS = ("action", "rewards", "terminated", "truncated")


def slow_steps(table):
    """{(env index, step): fields}, item by item; fields of a valid step take precedence over a final observation."""
    items_found = {}
    items = table.ring.items()
    for slot, env_index, start, steps in zip(items.slots, items.env_index, items.start, items.steps, strict=True):
        sequence = table.ring.gather(np.array([slot]))
        for t in range(steps + 1):
            entry = items_found.setdefault((int(env_index), int(start + t)), {"valid": False, "priority": 0.0})
            entry |= {name: tree.map(lambda leaf, t=t: leaf[t, 0], getattr(sequence, name)) for name in OBS_FIELDS}
            if t < steps:
                entry |= {name: tree.map(lambda leaf, t=t: leaf[t, 0], getattr(sequence, name)) for name in STEP_FIELDS}
                entry["valid"] = True
            if t == 0:
                carry = tree.map(lambda leaf: leaf[0], sequence.carry)
                priority = float(table.priorities(np.array([slot]))[0])
                entry |= {"first": sequence.first[0, 0], "carry": carry, "priority": priority}
    return items_found


def filled_table(seed, layout, spec, num_envs, fragments, rng):
    table = Table(spec, layout, num_envs, seed=0, priority=lambda sequence: rng.random(sequence.batch_size) + 0.1)
    stream = Stream(make_envs(seed, num_envs, layout, "random", glitch=0.1), np.arange(num_envs), layout)
    for number in range(fragments):
        fragment = stream.fragment(spec.fragment)
        if number % 7 != 5:  # one fragment is lost now and then
            table.insert(fragment)
    return table


def assert_equal_steps(steps, expected):
    """Check that `steps` are those of the slow reading, ordered by env index and time."""
    assert len(steps.valid) == len(expected)
    for i, ((env_index, _), entry) in enumerate(sorted(expected.items(), key=lambda pair: pair[0])):
        assert steps.env_index[i] == env_index
        for name, value in entry.items():
            got = tree.map(lambda leaf, i=i: leaf[i], getattr(steps, name))
            assert_same(tree.map(np.asarray, value), tree.map(np.asarray, got), name)
        if not entry["valid"]:
            assert not any(np.any(getattr(steps, name)[i]) for name in ("action", "terminated", "truncated"))


def test_ring_lists_its_items_by_env_and_time():
    layout, numbers = make_layout(None, carry=False), np.array([4, 1])
    spec = TableSpec("replay", "ring", 3, 4, 60, "prioritized", period=2, fragment=5)
    table = Table(spec, layout, 2, seed=0, priority=lambda sequence: 1.0 + sequence.action[0])
    model = RingModel(length=3, period=2, burn_in=0, cells=30, history=0)
    stream = Stream(make_envs(0, 2, layout), numbers, layout)
    for number in range(20):
        table.insert(stream.fragment(5))
        model.append(numbers, stream.records, [number > 0] * 2)
    items = table.ring.items()
    columns = (items.slots, items.generation, items.env_index, items.start, items.steps)
    items_found = [tuple(map(int, item)) for item in zip(*columns, strict=True)]
    assert {item[:2]: item[2:] for item in items_found} == model.sequences()
    assert [item[2:4] for item in items_found] == sorted(item[2:4] for item in items_found)
    expected = [1.0 + model.records[env_index][start]["action"] for _, _, env_index, start, _ in items_found]
    np.testing.assert_allclose(table.priorities(items.slots), expected)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 5),
    period=st.integers(1, 3),
    burn_in=st.integers(0, 2),
    stack=st.sampled_from([None, stack_of(2, 1), stack_of(4, 0), stack_of(3, 2)]),
    carry=st.booleans(),
    sampler=st.sampled_from(["uniform", "prioritized"]),
    capacity=st.integers(20, 120),
)
def test_every_step_of_every_item_is_read_once_and_in_order(
    seed, length, period, burn_in, stack, carry, sampler, capacity
):
    period, burn_in = min(period, length), min(burn_in, length - 1)
    layout = make_layout(stack, carry)
    spec = TableSpec("replay", "ring", length, 4, capacity, sampler, period, burn_in, fragment=5)
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
    restored = from_columns(columns, step_specs(layout), layout.stack)
    assert_same(dict(tree.items(steps)), dict(tree.items(restored)))
    if stack is not None:
        assert columns["obs/image"].nbytes * stack.n == steps.obs["image"].nbytes
        assert len(columns["stack"]) < len(steps.valid) or stack.n == 1
