import itertools
import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.store_streams import RingModel, Stream, assert_same, column, make_envs, make_layout, stack_of

from starling import tree
from starling.replay import codec
from starling.replay.kernels import locate
from starling.replay.ring import Ring
from starling.replay.spec import TableSpec
from starling.types import ArraySpec, Fragment, Layout, StackSpec


def ring_spec(**changes):
    return TableSpec(**{"name": "replay", "storage": "ring", "length": 3, "batch": 4, "capacity": 30} | changes)


def model_of(spec, num_envs, stack):
    n = stack.n if stack else 1
    cells = max(spec.capacity // num_envs, spec.length + spec.fragment + n)
    return RingModel(spec.length, spec.period, spec.burn_in, cells, n - 1, spec.reads_past_end)


@pytest.fixture(autouse=True, scope="module")
def compress_everything():
    """Compress even the tiny observations of these tests, for which it does not pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "SMALLEST", 1)
        yield


class RingMachine(RuleBasedStateMachine):
    """A ring fed with random streams, lost fragments, and restarted actors, compared with the slow model."""

    @initialize(
        seed=st.integers(0, 2**31),
        length=st.integers(1, 5),
        period=st.integers(1, 4),
        burn_in=st.integers(0, 4),
        groups=st.sampled_from([(1,), (2,), (2, 1)]),
        stack=st.sampled_from([None, stack_of(1, 0), stack_of(2, 1), stack_of(4, 0), stack_of(3, 2)]),
        padding=st.sampled_from(["zeros", "repeat", "random"]),
        glitch=st.sampled_from([0.0, 0.2, 1.0]),
        end=st.sampled_from([0.05, 0.2, 0.5]),
        carry=st.booleans(),
        capacity=st.integers(1, 90),
        codec=st.sampled_from(["none", "zstd"]),
        reads_past_end=st.booleans(),
    )
    def begin(
        self, seed, length, period, burn_in, groups, stack, padding, glitch, end, carry, capacity, codec, reads_past_end
    ):
        self.layout = make_layout(stack, carry)
        spec = ring_spec(
            length=length,
            period=period,
            burn_in=min(burn_in, length - 1),
            capacity=capacity,
            fragment=6,
            codec=codec,
            reads_past_end=reads_past_end,
        )
        count = sum(groups)
        envs = make_envs(seed, count, self.layout, padding, glitch, end)
        numbers = np.random.default_rng(seed).permutation(10)[:count]
        splits = np.cumsum((0, *groups))
        self.streams = [Stream(envs[a:b], numbers[a:b], self.layout) for a, b in itertools.pairwise(splits)]
        self.make = lambda: Ring(spec, self.layout, count)
        self.ring, self.model = self.make(), model_of(spec, count, stack)
        self.joined = [False] * len(groups)
        self.live = {}

    @rule(index=st.integers(0, 1), length=st.integers(1, 6), with_sequence_numbers=st.booleans())
    def append(self, index, length, with_sequence_numbers):
        index %= len(self.streams)
        stream = self.streams[index]
        fragment = stream.fragment(length)
        before = fragment.trajectory.obs["vector"].copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stacks that do not slide are part of the test
            # After a loss the ring must detect the gap itself; with sequence numbers it is told.
            change = self.ring.append(fragment, continues=self.joined[index] or not with_sequence_numbers)
        for leaf in tree.leaves(fragment.trajectory):
            leaf[...] = 0  # the ring must have made a copy
        assert before.any()
        self.model.append(stream.numbers, stream.records, [self.joined[index]] * len(stream.numbers))
        self.joined[index] = True
        for slot in change.removed:
            del self.live[int(slot)]
        for slot, generation in zip(change.added, self.ring.generation(change.added), strict=True):
            assert int(slot) not in self.live
            self.live[int(slot)] = int(generation)

    @rule(index=st.integers(0, 1), length=st.integers(1, 4))
    def lose_fragment(self, index, length):
        index %= len(self.streams)
        self.streams[index].fragment(length)
        self.joined[index] = False

    @rule(index=st.integers(0, 1))
    def restart_actor(self, index):
        index %= len(self.streams)
        for env in self.streams[index].envs:
            env.reset()
        self.joined[index] = False

    @rule(seed=st.integers(0, 1000))
    def release_some(self, seed):
        if not self.live:
            return
        rng = np.random.default_rng(seed)
        slots = rng.permutation(sorted(self.live))[: rng.integers(1, 4)]
        expected_sequences = self.model.sequences()
        for slot in slots.tolist():
            number, start, _ = expected_sequences[slot, self.live.pop(slot)]
            self.model.dropped.add((number, start))
        self.ring.release(slots)

    @rule()
    def save_and_load(self):
        state = self.ring.get_state()
        self.ring = self.make()
        self.ring.set_state(state)
        assert_same(state, self.ring.get_state())

    @invariant()
    def is_valid(self):
        if hasattr(self, "ring"):
            self.ring.check_valid()

    @invariant()
    def equals_the_model(self):
        if not hasattr(self, "ring"):
            return
        expected_sequences = self.model.sequences()
        assert set(self.live.items()) == set(expected_sequences)
        keys = np.array(list(expected_sequences), np.int64).reshape(-1, 2)
        assert self.ring.alive(keys[:, 0], keys[:, 1]).all()
        assert not self.ring.alive(keys[:, 0], keys[:, 1] - 1).any()
        got = self.ring.gather(keys[:, 0])
        for b, sequence in enumerate(expected_sequences.values()):
            assert_same(self.model.expected(*sequence, self.layout), column(got, b))


TestRing = RingMachine.TestCase
TestRing.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def run_ring(spec, layout, fragments, length, seed=0, **options):
    """A ring and its model after some fragments of two envs."""
    stream = Stream(make_envs(seed, 2, layout, **options), np.arange(2), layout)
    ring, model = Ring(spec, layout, 2), model_of(spec, 2, layout.stack)
    for i in range(fragments):
        ring.append(stream.fragment(length), continues=True)
        model.append(stream.numbers, stream.records, [i > 0] * 2)
    return ring, model, stream


def assert_holds(ring, model, layout):
    """Check that every sequence of the model is in the ring."""
    expected_sequences = model.sequences()
    got = ring.gather(np.array([slot for slot, _ in expected_sequences]))
    for b, sequence in enumerate(expected_sequences.values()):
        assert_same(model.expected(*sequence, layout), column(got, b))


def test_short_episodes_give_sequences_padded_with_the_final_observation():
    layout = make_layout()
    ring, model, _ = run_ring(ring_spec(length=5, capacity=80), layout, 4, 8, end=0.6)
    expected_sequences = model.sequences()
    short = [key for key, (_, _, steps) in expected_sequences.items() if steps < 5]
    assert len(short) > 10
    got = ring.gather(np.array([slot for slot, _ in short]))
    for b, key in enumerate(short):
        number, start, steps = expected_sequences[key]
        final = model.records[number][start + steps]
        assert not final["valid"]
        assert (got.obs["vector"][steps:, b] == final["obs"]["vector"]).all()
        assert (got.extras["q"][steps:, b] == final["extras"]["q"]).all()
        assert not got.valid[steps:, b].any()
        assert not got.action[steps:, b].any()
        assert not got.rewards["extrinsic"][steps:, b].any()


def test_extras_of_the_last_observation_come_from_the_next_fragment():
    layout = make_layout()
    ring, _, stream = run_ring(ring_spec(length=2), layout, 1, 2, end=0.0)
    ring.append(stream.fragment(2), continues=True)
    got = ring.gather(np.array([1]))  # steps 1 and 2 of the first env: across the two fragments
    assert (got.extras["q"][1, 0] == stream.records[0][0]["extras"]["q"]).all()


def test_without_a_carry_no_carry_is_stored():
    layout = make_layout(carry=False)
    ring, _, _ = run_ring(ring_spec(), layout, 3, 4)
    assert ring.get_state()["carry"] is None
    assert ring.gather(np.array([0])).carry == {}


def test_carry_is_stored_only_where_sequences_begin():
    layout = make_layout()
    ring, _, _ = run_ring(ring_spec(length=4, period=4, capacity=400), layout, 10, 8, end=0.0)
    state = ring.get_state()["carry"]
    assert (state["entry"] >= 0).sum() == 2 * 80 / 4


def test_missing_carries_are_rejected():
    layout = make_layout()
    stream = Stream(make_envs(0, 1, layout), np.arange(1), layout)
    fragment = stream.fragment(2)
    with pytest.raises(ValueError, match="carries"):
        Ring(ring_spec(), layout, 1).append(type(fragment)(fragment.trajectory, fragment.env_index), continues=False)


def test_episode_start_after_a_valid_step_is_rejected():
    layout = make_layout()
    fragment = Stream(make_envs(0, 1, layout, end=0.0), np.arange(1), layout).fragment(3)
    fragment.trajectory.first[2] = True
    with pytest.raises(ValueError, match="reset"):
        Ring(ring_spec(), layout, 1).append(fragment, continues=False)


def test_too_many_envs_and_too_long_fragments_are_rejected():
    layout = make_layout()
    ring = Ring(ring_spec(capacity=8), layout, 1)
    with pytest.raises(ValueError, match="too long"):
        ring.append(Stream(make_envs(0, 1, layout), np.arange(1), layout).fragment(9), continues=False)
    with pytest.raises(ValueError, match="more envs"):
        ring.append(Stream(make_envs(0, 2, layout), np.arange(2), layout).fragment(2), continues=False)


def test_fragments_with_nan_observations_are_joined():
    layout = make_layout()
    stream = Stream(make_envs(0, 1, layout, end=0.0), np.arange(1), layout)
    ring = Ring(ring_spec(length=2), layout, 1)
    for _ in range(3):
        fragment = stream.fragment(2)
        fragment.trajectory.obs["vector"][...] = np.nan
        ring.append(fragment, continues=True)
    assert ring.broken == 0


@pytest.mark.parametrize("padding", ["zeros", "repeat", "random"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sliding_stacks_store_one_frame_per_step(padding, axis):
    layout = make_layout(stack_of(4, axis))
    ring, model, _ = run_ring(ring_spec(length=3, capacity=120), layout, 10, 8, padding=padding, end=0.1)
    full_stacks = ring.get_state()["obs"]["1"]["full_stacks"]["entry"]
    begun = sum(r["first"] for records in model.records.values() for r in records[-60:])
    assert (full_stacks >= 0).sum() == begun  # no warning was raised: warnings are errors in tests
    assert_holds(ring, model, layout)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("reads_past_end", [True, False])
def test_stacks_after_a_termination_keep_sliding_if_nobody_reads_them(reads_past_end, codec):
    layout = make_layout(stack_of(4, 0))
    spec = ring_spec(length=5, capacity=120, reads_past_end=reads_past_end, codec=codec)
    ring, model, _ = run_ring(spec, layout, 10, 8, end=0.2)
    expected_sequences = {key: sequence for key, sequence in model.sequences().items() if sequence[2] < 5}
    got = ring.gather(np.array([slot for slot, _ in expected_sequences]))
    terminated = got.terminated.any(axis=0)
    assert terminated.sum() > 10
    for b, sequence in enumerate(expected_sequences.values()):
        assert_same(model.expected(*sequence, layout), column(got, b))
    slid = (got.obs["image"][-1] != got.obs["image"][-2]).any(axis=(1, 2, 3))
    assert slid[terminated].any() != reads_past_end
    assert not slid[~terminated].any()


def test_neighboring_stacks_share_their_frames():
    image = ArraySpec((4, 6, 6), np.dtype(np.uint8))
    layout = Layout(image, ArraySpec((), np.dtype(np.int64)), ("extrinsic",), {}, {}, StackSpec("", 0, 4))
    ring = Ring(ring_spec(length=3), layout, 1)
    frames = np.arange(1, 16, dtype=np.uint8)[:, None, None] + np.zeros((15, 6, 6), np.uint8)
    steps = tree.zeros(layout.trajectory(8, 1))
    steps.valid[:], steps.first[0] = True, True
    steps.obs[:, 0] = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0)[:9].transpose(0, 3, 1, 2)
    ring.append(Fragment(steps, np.zeros(1, np.int64)), continues=False)
    obs = ring.gather(np.array([0, 2, 5])).obs
    assert np.array_equal(obs[:, 1], steps.obs[2:6, 0])
    assert np.shares_memory(obs[0, :, 1:], obs[1, :, :-1])


def test_stack_that_does_not_slide_warns_once_and_is_stored_exactly():
    layout = make_layout(stack_of(4, 0))
    stream = Stream(make_envs(0, 2, layout, glitch=1.0, end=0.1), np.arange(2), layout)
    ring, model = Ring(ring_spec(capacity=120), layout, 2), model_of(ring_spec(capacity=120), 2, layout.stack)
    with pytest.warns(UserWarning, match="slide"):
        ring.append(stream.fragment(8), continues=False)
    model.append(stream.numbers, stream.records, [False] * 2)
    for _ in range(9):
        ring.append(stream.fragment(8), continues=True)  # a second warning would be an error here
        model.append(stream.numbers, stream.records, [True] * 2)
    assert_holds(ring, model, layout)


def test_single_leaf_observation_can_be_a_stack():
    image = ArraySpec((4, 6, 6), np.dtype(np.uint8))
    layout = Layout(image, ArraySpec((), np.dtype(np.int64)), ("extrinsic",), {}, {}, StackSpec("", 0, 4))
    newest = Ring(ring_spec(), layout, 1).get_state()["obs"]["0"]["newest"]
    assert newest.shape[2:] == (1, 6, 6)


def test_state_consists_of_arrays_and_json():
    layout = make_layout(stack_of(4, 0))
    ring, _, _ = run_ring(ring_spec(), layout, 3, 4)

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return None if isinstance(value, np.ndarray) else value

    json.dumps(plain(ring.get_state()))


@pytest.mark.parametrize("wrong", [[0, 0], [0, 1, 2], [-1, 0], [0, 2**20], [0.0, 1.0], [[0], [1]]])
def test_saved_env_indices_that_no_ring_has_are_rejected(wrong):
    layout = make_layout()
    ring, _, _ = run_ring(ring_spec(), layout, 3, 4)
    state = ring.get_state()
    Ring(ring_spec(), layout, 2).set_state(state)
    with pytest.raises(ValueError, match="saved env ind"):
        Ring(ring_spec(), layout, 2).set_state(state | {"env_index": np.array(wrong)})


def test_out_of_range_frame_ages_write_nothing_outside_the_buffer():
    """Ages from a file are validated; this compiled loop itself does no bounds checks."""
    ages = np.full(8, -30_000, np.int16)
    cells, from_full = np.zeros((2, 6), np.int64), np.full((2, 100), -1, np.int64)
    outputs = {"out_cells": cells, "out_from_full": from_full, "out_irregular": np.zeros(2, bool)}
    count = locate(np.array([0, 4]), np.array([3, 3]), np.zeros(2, bool), ages, 8, 3, **outputs)
    assert count <= 2 * 2
    assert (from_full[:, 4:] == -1).all()
    assert ((cells >= 0) & (cells < 8)).all()
