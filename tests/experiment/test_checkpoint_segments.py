"""Segments: written once, shared by checkpoints, removed with the last that names them, and never trusted blindly."""

import numpy as np
import pytest
from support.checkpoint_files import flip, save, truncate

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.segments import Block, Joined, Segmented, SegmentLostError

KEEP = Retention(newest=2)


class Counted(Joined):
    """A segment that knows how often it was read."""

    reads = 0

    def read(self):
        self.reads += 1
        return super().read()


def a_segment(letter):
    return Counted((letter.encode() * 1000, b"end"))


def a_state(*segments):
    return {"store": {"ring": Segmented(segments), "size": 3}, "learner": {"w": np.arange(3)}}


def contents(state):
    return [part.read() for part in state["store"]["ring"].parts]


def files(root):
    return {file.name.removesuffix(".bin") for file in (root / "segments").iterdir()}


def test_what_is_saved_comes_back(tmp_path):
    save(tmp_path, 1, a_state(a_segment("a"), a_segment("b"), Joined(())), retention=KEEP)
    _, state, problems = checkpoint.find(tmp_path)
    assert problems == []
    assert contents(state) == [b"a" * 1000 + b"end", b"b" * 1000 + b"end", b""]
    assert state["store"]["size"] == 3


def test_a_segment_is_read_and_written_once(tmp_path):
    old, new = a_segment("a"), a_segment("b")
    save(tmp_path, 1, a_state(old), retention=KEEP)
    written = (tmp_path / "segments" / f"{old.name}.bin").stat()
    save(tmp_path, 2, a_state(old, new), retention=KEEP)
    assert (old.reads, new.reads) == (1, 1)
    assert (tmp_path / "segments" / f"{old.name}.bin").stat() == written
    assert len(contents(checkpoint.find(tmp_path)[1])) == 2


def test_loaded_segments_are_on_disk_already(tmp_path):
    save(tmp_path, 1, a_state(a_segment("a")), retention=KEEP)
    state = checkpoint.find(tmp_path)[1]
    (part,) = state["store"]["ring"].parts
    written = (tmp_path / "segments" / f"{part.name}.bin").stat()
    save(tmp_path, 2, state, retention=KEEP)
    assert (tmp_path / "segments" / f"{part.name}.bin").stat() == written


def test_segments_go_with_the_last_checkpoint_that_names_them(tmp_path):
    a, b, c = map(a_segment, "abc")
    for step, segments in enumerate([(a,), (a, b), (b,), (b, c)]):
        save(tmp_path, step, a_state(*segments), retention=KEEP)
    assert files(tmp_path) == {b.name, c.name}


def test_what_a_killed_save_left_is_removed(tmp_path):
    (tmp_path / "segments").mkdir()
    for name in (".unfinished", f"{'0123' * 16}.bin"):
        (tmp_path / "segments" / name).write_bytes(b"left")
    a = a_segment("a")
    save(tmp_path, 1, a_state(a), retention=KEEP)
    assert files(tmp_path) == {a.name}


def test_nothing_is_removed_while_a_manifest_cannot_be_read(tmp_path):
    a, b = a_segment("a"), a_segment("b")
    manifest = save(tmp_path, 1, a_state(a), retention=KEEP) / "manifest.json"
    manifest.rename(tmp_path / "elsewhere")
    save(tmp_path, 2, a_state(b), retention=KEEP)
    (tmp_path / "elsewhere").rename(manifest)
    assert checkpoint.is_sound(manifest.parent)


@pytest.mark.parametrize("damage", [truncate, flip, lambda file: file.unlink()])
def test_a_damaged_segment_is_named_and_the_older_checkpoint_used(tmp_path, damage):
    a, b = a_segment("a"), a_segment("b")
    save(tmp_path, 1, a_state(a), retention=KEEP)
    save(tmp_path, 2, a_state(a, b), retention=KEEP)
    damage(tmp_path / "segments" / f"{b.name}.bin")
    chosen, state, problems = checkpoint.find(tmp_path)
    assert chosen.name == "step-000000000001"
    assert contents(state) == [b"a" * 1000 + b"end"]
    assert len(problems) == 1
    assert problems[0].startswith(f"step-000000000002: segments/{b.name}.bin ")


def test_a_damaged_segment_is_mended_when_its_content_is_saved_again(tmp_path):
    b = a_segment("b")
    save(tmp_path, 1, a_state(b), retention=KEEP)
    flip(tmp_path / "segments" / f"{b.name}.bin")
    save(tmp_path, 2, a_state(a_segment("b")), retention=KEEP)  # the same content, made again after a restart
    assert [checkpoint.is_sound(folder) for folder in sorted(tmp_path.glob("step-*"))] == [True, True]


def test_parts_that_are_not_asked_for_are_not_looked_at(tmp_path):
    a = a_segment("a")
    folder = save(tmp_path, 1, a_state(a), retention=KEEP)
    flip(tmp_path / "segments" / f"{a.name}.bin")
    flip(folder / "store.json")
    _, state, problems = checkpoint.find(tmp_path, parts=("learner",))
    assert problems == []
    assert state.keys() == {"learner"}
    with pytest.raises(UserError, match=r"store\.json was altered"):
        checkpoint.find(tmp_path)


def test_a_branch_does_not_need_its_parents_segments(tmp_path):
    parent, child = tmp_path / "parent", tmp_path / "child"
    save(parent, 1, a_state(a_segment("a")), retention=KEEP)
    save(child, 1, checkpoint.find(parent)[1], retention=KEEP)
    (file,) = (parent / "segments").iterdir()
    truncate(file)
    assert contents(checkpoint.find(child)[1]) == [b"a" * 1000 + b"end"]


def test_segments_that_are_gone_by_the_time_they_are_read_are_named(tmp_path):
    save(tmp_path, 1, a_state(a_segment("a")), retention=KEEP)
    state = checkpoint.find(tmp_path)[1]
    (file,) = (tmp_path / "segments").iterdir()
    file.unlink()
    with pytest.raises(UserError, match=r"segments/.*\.bin cannot be read any more"):
        contents(state)


def test_checkpoints_of_the_first_format_load(tmp_path):
    folder = save(tmp_path, 1, {"learner": {"w": np.arange(3)}}, retention=KEEP)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1').replace('"segments": {}', '"x": 0'))
    assert checkpoint.load(folder)["learner"]["w"].tolist() == [0, 1, 2]
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(UserError, match="format 3 is not 2"):
        checkpoint.find(tmp_path)


def test_a_block_is_copied_only_if_it_changes_before_its_reader_is_done():
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
    assert free.read() == bytes([2] * 8), "nobody reads it any more, so nothing was copied"


def test_what_cannot_be_written_is_let_go_all_the_same(tmp_path):
    """A block with a reader is copied before it is overwritten: it must not stay one indefinitely."""

    class Lost(Joined):
        def read(self):
            raise SegmentLostError("its node is gone")

    class Released(Counted):
        released = False

        def release(self):
            self.released = True

    parts = [Released((b"a",)), Lost((b"b",)), Released((b"c",))]
    with pytest.raises(SegmentLostError):
        save(tmp_path, 1, a_state(*parts), retention=KEEP)
    assert [part.released for part in parts[::2]] == [True, True]
