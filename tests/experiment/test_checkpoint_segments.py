"""Segments: written once, shared by checkpoints, removed with the last one that refers to them, and validated."""

import numpy as np
import pytest
from support.checkpoint_files import flip, save, truncate

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.state_io import Block, Joined, Segmented, SegmentLostError

KEEP = Retention(newest=2)


class Counted(Joined):
    """A segment that counts how often it is read."""

    reads = 0

    def read(self):
        self.reads += 1
        return super().read()


def make_segment(letter):
    return Counted((letter.encode() * 1000, b"end"))


def make_state(*segments):
    return {"store": {"ring": Segmented(segments), "size": 3}, "learner": {"w": np.arange(3)}}


def contents(state):
    return [part.read() for part in state["store"]["ring"].parts]


def files(root):
    return {file.name.removesuffix(".bin") for file in (root / "segments").iterdir()}


def test_saved_segments_are_restored(tmp_path):
    save(tmp_path, 1, make_state(make_segment("a"), make_segment("b"), Joined(())), retention=KEEP)
    _, state, problems = checkpoint.find(tmp_path)
    assert problems == []
    assert contents(state) == [b"a" * 1000 + b"end", b"b" * 1000 + b"end", b""]
    assert state["store"]["size"] == 3


def test_segment_is_read_and_written_once(tmp_path):
    old, new = make_segment("a"), make_segment("b")
    save(tmp_path, 1, make_state(old), retention=KEEP)
    written = (tmp_path / "segments" / f"{old.name}.bin").stat()
    save(tmp_path, 2, make_state(old, new), retention=KEEP)
    assert (old.reads, new.reads) == (1, 1)
    assert (tmp_path / "segments" / f"{old.name}.bin").stat() == written
    assert len(contents(checkpoint.find(tmp_path)[1])) == 2


def test_loaded_segments_are_not_written_again(tmp_path):
    save(tmp_path, 1, make_state(make_segment("a")), retention=KEEP)
    state = checkpoint.find(tmp_path)[1]
    (part,) = state["store"]["ring"].parts
    written = (tmp_path / "segments" / f"{part.name}.bin").stat()
    save(tmp_path, 2, state, retention=KEEP)
    assert (tmp_path / "segments" / f"{part.name}.bin").stat() == written


def test_segments_are_removed_with_the_last_checkpoint_that_refers_to_them(tmp_path):
    a, b, c = map(make_segment, "abc")
    for step, segments in enumerate([(a,), (a, b), (b,), (b, c)]):
        save(tmp_path, step, make_state(*segments), retention=KEEP)
    assert files(tmp_path) == {b.name, c.name}


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    (tmp_path / "segments").mkdir()
    for name in (".unfinished", f"{'0123' * 16}.bin"):
        (tmp_path / "segments" / name).write_bytes(b"left")
    a = make_segment("a")
    save(tmp_path, 1, make_state(a), retention=KEEP)
    assert files(tmp_path) == {a.name}


def test_no_segment_is_removed_while_a_manifest_cannot_be_read(tmp_path):
    a, b = make_segment("a"), make_segment("b")
    manifest = save(tmp_path, 1, make_state(a), retention=KEEP) / "manifest.json"
    manifest.rename(tmp_path / "elsewhere")
    save(tmp_path, 2, make_state(b), retention=KEEP)
    (tmp_path / "elsewhere").rename(manifest)
    assert checkpoint.is_sound(manifest.parent)


@pytest.mark.parametrize("damage", [truncate, flip, lambda file: file.unlink()])
def test_damaged_segment_is_reported_and_the_older_checkpoint_used(tmp_path, damage):
    a, b = make_segment("a"), make_segment("b")
    save(tmp_path, 1, make_state(a), retention=KEEP)
    save(tmp_path, 2, make_state(a, b), retention=KEEP)
    damage(tmp_path / "segments" / f"{b.name}.bin")
    chosen, state, problems = checkpoint.find(tmp_path)
    assert chosen.name == "step-000000000001"
    assert contents(state) == [b"a" * 1000 + b"end"]
    assert len(problems) == 1
    assert problems[0].startswith(f"step-000000000002: segments/{b.name}.bin ")


def test_damaged_segment_is_replaced_when_its_content_is_saved_again(tmp_path):
    b = make_segment("b")
    save(tmp_path, 1, make_state(b), retention=KEEP)
    flip(tmp_path / "segments" / f"{b.name}.bin")
    save(tmp_path, 2, make_state(make_segment("b")), retention=KEEP)  # the same content, as after a restart
    assert [checkpoint.is_sound(folder) for folder in sorted(tmp_path.glob("step-*"))] == [True, True]


def test_only_the_requested_parts_are_read(tmp_path):
    a = make_segment("a")
    folder = save(tmp_path, 1, make_state(a), retention=KEEP)
    flip(tmp_path / "segments" / f"{a.name}.bin")
    flip(folder / "store.json")
    _, state, problems = checkpoint.find(tmp_path, parts=("learner",))
    assert problems == []
    assert state.keys() == {"learner"}
    with pytest.raises(UserError, match=r"store\.json was altered"):
        checkpoint.find(tmp_path)


def test_branch_does_not_need_the_segments_of_its_parent(tmp_path):
    parent, child = tmp_path / "parent", tmp_path / "child"
    save(parent, 1, make_state(make_segment("a")), retention=KEEP)
    save(child, 1, checkpoint.find(parent)[1], retention=KEEP)
    (file,) = (parent / "segments").iterdir()
    truncate(file)
    assert contents(checkpoint.find(child)[1]) == [b"a" * 1000 + b"end"]


def test_segments_removed_before_reading_are_a_clear_error(tmp_path):
    save(tmp_path, 1, make_state(make_segment("a")), retention=KEEP)
    state = checkpoint.find(tmp_path)[1]
    (file,) = (tmp_path / "segments").iterdir()
    file.unlink()
    with pytest.raises(UserError, match=r"segments/.*\.bin cannot be read any more"):
        contents(state)


def test_checkpoints_of_format_1_load(tmp_path):
    folder = save(tmp_path, 1, {"learner": {"w": np.arange(3)}}, retention=KEEP)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1').replace('"segments": {}', '"x": 0'))
    assert checkpoint.load(folder)["learner"]["w"].tolist() == [0, 1, 2]
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(UserError, match="format 3 is not 2"):
        checkpoint.find(tmp_path)


def test_block_is_copied_only_if_it_changes_while_it_is_held():
    array = np.zeros(8, np.uint8)
    block = Block(array[2:5])
    block.hold()
    block.detach()
    array[:] = 1
    assert block.read() == bytes(3)
    free = Block(array)
    free.hold()
    free.release()
    free.detach()
    array[:] = 2
    assert free.read() == bytes([2] * 8), "it was released, so it was not copied"


def test_segments_are_released_even_if_one_cannot_be_written(tmp_path):
    """A held block is copied before it is overwritten, so it must not be held indefinitely."""

    class LostSegment(Joined):
        def read(self):
            raise SegmentLostError("its node is gone")

    class ReleasedSegment(Counted):
        released = False

        def release(self):
            self.released = True

    parts = [ReleasedSegment((b"a",)), LostSegment((b"b",)), ReleasedSegment((b"c",))]
    with pytest.raises(SegmentLostError):
        save(tmp_path, 1, make_state(*parts), retention=KEEP)
    assert [part.released for part in parts[::2]] == [True, True]
