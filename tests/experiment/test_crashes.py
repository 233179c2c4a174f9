"""After a power failure at any moment saved data is there, because every write waits for the previous one."""

import random
import shutil

import numpy as np
import pytest
from support.checkpoint_files import ages, changing_state, save
from support.traced_disk import CrashModel, TracedDisk, crashes, read_tree, write_tree

from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.metrics import MetricsFile, read_rows
from starling.experiment.run_folder.saving import Saver

HARSH = Retention(newest=1, best=True)
"""Nothing to fall back to but the newest and the best."""
SAVES = [(10, 1.0), (20, 5.0), (20, 2.0), (20, 2.0), (30, 3.0), (40, 9.0), (50, None)]
"""Env steps and scores; with several processes two checkpoints may have the same env steps and other weights."""


def after_every_crash(base, operations, scratch):
    """Every state that a crash may leave, as a folder, and what had been reported as done before it."""
    model, done, rng, seen = CrashModel(base), [], random.Random(0), set()
    for operation in operations:
        if operation[0] == "done":
            done.append(operation[1])
        else:
            model.apply(*operation)
        for crash in crashes(rng):
            left = model.left(**crash)
            known = len(seen)
            seen.add((len(done), *left.items()))
            if len(seen) > known:
                write_tree(scratch / "left", left)
                yield scratch / "left", done
                shutil.rmtree(scratch / "left")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder and the operations of some saves, one of which fails on a full disk."""
    base = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        traced = TracedDisk(patch)
        for serial, (step, score) in enumerate(SAVES, 1):
            if serial == 5:
                traced.room = 3000
                with pytest.raises(OSError, match="No space left"):
                    save(base / "checkpoints", step, changing_state(serial), retention=HARSH, score=score)
                traced.room = None
            save(base / "checkpoints", step, changing_state(serial), retention=HARSH, score=score)
            traced.operations.append(("done", (serial, step, score)))
    return base, traced.operations


def test_all_changes_go_through_the_recorded_layer(recorded):
    base, operations = recorded
    model = CrashModel(base)
    for operation in operations:
        if operation[0] != "done":
            model.apply(*operation)
    assert model.left(entries=lambda folder: None, content=lambda file: file.live) == read_tree(base)


def test_after_any_crash_the_last_checkpoint_is_found_and_the_next_one_written(recorded, tmp_path, monkeypatch):
    tried = 0
    monkeypatch.setattr(TracedDisk(monkeypatch), "fsync", lambda descriptor: None)  # no real syncing, which is slow
    for left, done in after_every_crash(*recorded, tmp_path):
        root = left / "checkpoints"
        if not done:
            continue
        tried += 1
        checkpoint.recover(root)
        _, state, problems = checkpoint.find(root)
        serial, step, _ = done[-1]
        found = state["learner"]["serial"]
        assert problems == []
        assert found in (serial, serial + 1)
        assert (state["store"]["frames"] == found).all()
        assert (state["learner"]["w"] == found).all()
        assert ages(state["store"]["ring"]) == ages(changing_state(found)["store"]["ring"])
        best_score = max(score for _, _, score in done if score is not None)
        name, score = checkpoint.best(root)
        assert score >= best_score
        assert checkpoint.is_sound(root / name)
        save(root, step + 10, changing_state(99), retention=HARSH)
        assert checkpoint.find(root)[1]["learner"]["serial"] == 99
    assert tried > 150


def test_failed_save_leaves_only_the_last_checkpoint(tmp_path, monkeypatch):
    """Whichever write fails."""
    traced, root = TracedDisk(monkeypatch), tmp_path / "checkpoints"
    before = save(root, 10, changing_state(1), retention=HARSH)
    kept = sorted(root.rglob("*"))
    traced.operations.clear()
    save(tmp_path / "other", 20, changing_state(2), retention=HARSH)
    written = sum(len(operation[2]) for operation in traced.operations if operation[0] == "write")
    for room in range(0, written, 1009):
        traced.room = room
        with pytest.raises(OSError, match="No space left"):
            save(root, 20, changing_state(2), retention=HARSH)
        assert sorted(root.rglob("*")) == kept
        assert checkpoint.is_sound(before)
    traced.room = None
    assert checkpoint.load(save(root, 20, changing_state(2), retention=HARSH))["learner"]["serial"] == 2


def test_segments_are_released_if_a_checkpoint_cannot_be_written(tmp_path, monkeypatch):
    """Otherwise training would copy every changed block for a reader that never comes."""
    state = changing_state(1)
    released = []
    for part in state["store"]["ring"].parts:
        monkeypatch.setattr(part, "release", lambda part=part: released.append(part))
    with pytest.raises(OSError, match="No such file"):
        save(tmp_path / "gone" / "checkpoints", 10, state, retention=HARSH)
    assert released == list(state["store"]["ring"].parts)


def test_old_checkpoints_are_removed_only_after_the_new_one_is_on_disk(recorded):
    """And their files only after the removal of the folder's name is on disk."""
    base, operations = recorded
    root, synced = str(base / "checkpoints"), True
    for operation in operations:
        if operation[0] == "rename" and not operation[2].endswith(".bin"):
            synced = False
        elif operation == ("sync", root):
            synced = True
        elif operation[0] in ("unlink", "rmdir") and "segments" not in operation[1]:
            assert synced, operation


def test_run_and_its_rows_survive_a_crash(tmp_path, monkeypatch):
    base = tmp_path / "base"
    base.mkdir()
    traced = TracedDisk(monkeypatch)
    place = folder.create(base, load("ppo-cartpole", ["run=a"]))
    traced.operations.append(("done", "made"))
    first = MetricsFile(place.metrics_file, print)
    for step in range(4):
        first.write({"env_steps": step})
    # As the system does by itself after some time.
    traced.operations += [("sync", str(place.metrics_file)), ("done", 4)]
    MetricsFile(place.metrics_file, print, 3, 2)
    traced.operations.append(("done", 3))
    for left, done in after_every_crash(base, traced.operations, tmp_path):
        run = folder.RunFolder(left / "a")
        if done:
            assert run.config() == place.config()
        if len(done) > 1:
            found = [row["env_steps"] for row in read_rows(run.metrics_file)]
            assert found in ([0, 1, 2], list(range(done[-1])))


def test_checkpoint_is_never_on_disk_without_the_rows_before_it(tmp_path, monkeypatch):
    base = tmp_path / "base"
    base.mkdir()
    traced = TracedDisk(monkeypatch)
    metrics = MetricsFile(base / "metrics.jsonl", print)
    saver = Saver(base / "checkpoints", HARSH, print, metrics.sync)
    for step in (1, 2):
        metrics.write({"env_steps": step})
        saver.save(lambda step=step: (step, {"session": {"rows": step}}), None)
        saver.finish()
    saver.close()
    found = 0
    for left, _ in after_every_crash(base, traced.operations, tmp_path):
        try:
            state = checkpoint.find(left / "checkpoints")[1]
        except UserError:
            continue
        found += 1
        assert len(read_rows(left / "metrics.jsonl")) >= state["session"]["rows"]
    assert found > 10


def test_content_is_on_disk_before_its_name(recorded):
    """The basis of the crash tests for single files: content is synced before it gets its name."""
    dirty = set()
    for kind, path, *rest in [operation for operation in recorded[1] if operation[0] != "done"]:
        if kind in ("create", "write", "truncate"):
            dirty.add(path)
        elif kind in ("sync", "unlink"):
            dirty.discard(path)
        elif kind == "rename":
            assert not [file for file in dirty if file == path or file.startswith(f"{path}/")], (path, rest)
    assert dirty == set()


def test_traced_disk_can_be_full(tmp_path, monkeypatch):
    TracedDisk(monkeypatch, room=1000)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 1, {"learner": {"w": np.zeros(1000)}}, retention=HARSH)
