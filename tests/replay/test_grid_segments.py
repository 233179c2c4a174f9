"""Replay saved in segments: a state is a snapshot although the ring goes on, and only changed segments are written."""

import numpy as np
import pytest
from support.store_streams import Stream, make_envs, make_layout

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.saving import Saver
from starling.replay import codec, grid, table_bytes
from starling.replay.codec import Chunked, Plain
from starling.replay.grid import Grid
from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.state_io import freeze
from starling.types import ArraySpec, StackSpec

GRID = Grid(rings=3, length=50)
FRAME = ArraySpec((40, 30), np.dtype(np.uint8))


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    """A few cells per segment, so that a small ring has many segments."""
    monkeypatch.setattr(grid, "BLOCK_BYTES", 7 * FRAME.nbytes)
    monkeypatch.setattr(codec, "LEAST_BYTES", 0)
    monkeypatch.setattr(codec, "SMALLEST", 8)
    monkeypatch.setattr(codec, "GROUP_BYTES", 2 * codec.CHUNK * FRAME.nbytes)


class RingWithModel:
    """Cells written in order of time, and a plain array with the expected values."""

    def __init__(self, kind, seed=0):
        self.cells, self.model = kind(FRAME, GRID), np.zeros((GRID.num_cells, *FRAME.shape), np.uint8)
        self.head, self.rng = 0, np.random.default_rng(seed)

    def write(self, steps):
        for _ in range(steps):
            cells = GRID.at(np.arange(GRID.rings), np.array([[self.head]]))
            values = self.rng.integers(0, 9, (1, GRID.rings, *FRAME.shape), np.uint8)
            self.cells.write(cells, values)
            self.model[cells] = values
            self.head += 1

    @property
    def used(self):
        return min(GRID.length, self.head)

    def state(self):
        return self.cells.get_state(self.used)


def written(ring):
    """The cells that have been written."""
    return GRID.at(np.arange(GRID.rings)[:, None], np.arange(ring.used)).ravel()


def segments(state):
    return [part for leaf in freeze({"part": state})["part"].segments.values() for part in leaf.parts]


@pytest.mark.parametrize("kind", [Plain, Chunked])
@pytest.mark.parametrize("steps", [1, 6, 7, 8, 49, 50, 51, 133])
def test_state_is_a_snapshot_while_the_ring_goes_on(kind, steps):
    ring = RingWithModel(kind)
    ring.write(steps)
    state, expected, cells = ring.state(), ring.model.copy(), written(ring)
    ring.write(60)
    restored = kind(FRAME, GRID)
    restored.set_state(state)
    assert np.array_equal(restored.read(cells), expected[cells])


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_several_states_of_one_ring_are_independent(kind):
    ring, kept = RingWithModel(kind), []
    for steps in (5, 0, 9, 30, 1, 77, 0, 3):
        ring.write(steps)
        if ring.head:
            kept.append((ring.state(), ring.model.copy(), written(ring)))
        for part in segments(kept[0][0])[:2]:
            assert part.read() is not None
    for state, expected, cells in kept:
        restored = kind(FRAME, GRID)
        restored.set_state(state)
        assert np.array_equal(restored.read(cells), expected[cells])


def test_env_that_lags_behind_the_others_is_saved_completely():
    cells, ones = Plain(FRAME, GRID), np.ones((1, 1, *FRAME.shape), np.uint8)
    for step in range(10):
        cells.write(np.array([[step]]), ones)
        cells.write(np.array([[GRID.length + step // 2]]), ones)
        state = cells.get_state(step + 1)
    restored = Plain(FRAME, GRID)
    restored.set_state(state)
    assert restored.read(GRID.at(np.arange(2)[:, None], np.arange(10))).any(axis=(2, 3)).sum(axis=1).tolist() == [10, 5]


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_state_is_written_by_another_thread_while_the_ring_goes_on(tmp_path, kind):
    ring, saver = RingWithModel(kind), Saver(tmp_path, Retention(newest=9), print)
    expected = {}
    for steps in (40, 30, 20, 60):
        ring.write(steps)
        expected[ring.head] = ring.model.copy(), written(ring)
        saver.save(lambda: (ring.head, {"store": ring.state()}), None)
    ring.write(50)
    saver.finish()
    saver.close()
    for head, (model, cells) in expected.items():
        restored = kind(FRAME, GRID)
        restored.set_state(checkpoint.find(tmp_path, str(head))[1]["store"])
        assert np.array_equal(restored.read(cells), model[cells])


def save(root, step, state):
    return checkpoint.write(root, step, freeze({"store": state}), retention=Retention(newest=2))


def files(root):
    return {file.name: file.stat().st_mtime_ns for file in (root / "segments").iterdir()}


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_only_changed_segments_are_written_again(tmp_path, kind):
    ring = RingWithModel(kind)
    ring.write(50)
    save(tmp_path, 1, ring.state())
    first = files(tmp_path)
    ring.write(3)
    save(tmp_path, 2, ring.state())
    kept = {name for name, time in files(tmp_path).items() if first.get(name) == time}
    assert kept == first.keys(), "segments of the older checkpoint are unchanged"
    new = len(files(tmp_path).keys() - first.keys())
    assert 1 <= new <= GRID.rings * 2, "one block per ring, and the one with the previous head"


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_restored_ring_reuses_the_segments_on_disk(tmp_path, kind):
    ring = RingWithModel(kind)
    ring.write(70)
    save(tmp_path, 1, ring.state())
    first = files(tmp_path)
    restored = RingWithModel(kind)
    restored.cells.set_state(checkpoint.find(tmp_path)[1]["store"])
    restored.model, restored.head = ring.model.copy(), ring.head
    save(tmp_path, 2, restored.state())
    assert files(tmp_path) == first, "nothing has changed, so nothing is written"
    for one in (ring, restored):
        one.rng = np.random.default_rng(7)
        one.write(20)
    names = [[part.read() for part in segments(one.state())] for one in (ring, restored)]
    assert names[0] == names[1], "the same content in the same segments, restored or not"
    assert np.array_equal(restored.cells.read(written(restored)), restored.model[written(restored)])


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_ring_loads_segments_of_another_size(monkeypatch, kind):
    ring = RingWithModel(kind)
    ring.write(60)
    state = ring.state()
    monkeypatch.setattr(grid, "BLOCK_BYTES", 11 * FRAME.nbytes)
    monkeypatch.setattr(codec, "GROUP_BYTES", 3 * codec.CHUNK * FRAME.nbytes)
    restored = RingWithModel(kind)
    restored.cells.set_state(state)
    restored.model, restored.head = ring.model.copy(), ring.head
    restored.write(10)
    later = kind(FRAME, GRID)
    later.set_state(restored.state())
    assert np.array_equal(later.read(written(restored)), restored.model[written(restored)])


@pytest.mark.parametrize("codec_name", ["none", "zstd"])
def test_table_is_restored_from_disk_with_priorities_and_cursors(tmp_path, codec_name):
    layout = make_layout(stack=StackSpec("image", axis=1, n=3))
    spec = TableSpec(
        "replay", "ring", length=3, batch=8, capacity=400, fragment=16, sampler="prioritized", codec=codec_name
    )
    table, restored = (Table(spec, layout, 4, seed=0) for _ in range(2))
    stream = Stream(make_envs(0, 4, layout, end=0.05), np.arange(4), layout)
    for _ in range(20):
        keys = table.insert(stream.fragment(16))
        table.reprioritize(keys, np.linspace(0.1, 2, len(keys)))
    frozen = freeze({"store": table.get_state()})
    fragments = [stream.fragment(16) for _ in range(10)]
    checkpoint.write(tmp_path, 1, frozen, retention=Retention(newest=1))
    restored.set_state(checkpoint.find(tmp_path)[1]["store"])
    for fragment in fragments:
        keys = [one.insert(fragment) for one in (table, restored)]
        assert np.array_equal(keys[0].slot, keys[1].slot)
        samples = [one.sample(8) for one in (table, restored)]
        assert np.array_equal(samples[0].keys.slot, samples[1].keys.slot)
        assert np.array_equal(samples[0].probability, samples[1].probability)
        assert np.array_equal(samples[0].trajectory.obs["image"], samples[1].trajectory.obs["image"])
    restored.check_valid()


def test_memory_copied_while_saving_is_predicted(monkeypatch):
    layout = make_layout(carry=False)
    layout.obs["vector"] = ArraySpec((100,), np.dtype(np.float32))
    spec = TableSpec("replay", "ring", length=3, batch=8, capacity=4000, fragment=16)
    monkeypatch.setattr(table_bytes, "LEAST_BYTES", 0)
    segmented = table_bytes.table_bytes(spec, layout, 4, 10_000)
    monkeypatch.setattr(table_bytes, "LEAST_BYTES", 2**30)
    unsegmented = table_bytes.table_bytes(spec, layout, 4, 10_000)
    assert unsegmented.copied == unsegmented.saved == segmented.saved
    assert unsegmented.saved - segmented.copied == 4000 * 400 * (1 - table_bytes.MEANWHILE)
