"""Checkpoints are restored exactly, or rejected by name."""

import json

import numpy as np
import pytest
import torch
from support.checkpoint_files import flip, save, truncate

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention

KEEP = Retention(newest=3)


def make_state(scale=1.0):
    return {
        "learner": {
            "model": {"a.weight": torch.arange(6.0).reshape(2, 3) * scale, "b/c": torch.tensor(3)},
            "rng": {"state": 2**100 + 7, "inc": 1},
            "empty": {},
        },
        "store": {"obs": np.arange(8, dtype=np.uint8).reshape(2, 4), "flag": np.array(True), "none": None},
        "session": {"totals": [1.5, float("inf")], "text": "é"},
    }


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor | np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert (one == other).all()
    else:
        assert one == other


def test_saved_state_is_restored_exactly(tmp_path):
    folder = save(tmp_path, 12, make_state(), retention=KEEP)
    assert_same(checkpoint.load(folder), make_state())


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in (5, 10, 900, 1000):
        save(tmp_path, step, make_state(step), retention=Retention(newest=2))
    chosen, state, problems = checkpoint.find(tmp_path)
    assert [f.name for f in sorted(tmp_path.iterdir())] == ["step-000000000900", "step-000000001000"]
    assert chosen.name.endswith("1000")
    assert problems == []
    assert_same(state, make_state(1000))


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty, lambda file: file.unlink()])
@pytest.mark.parametrize("victim", ["store.safetensors", "learner.json", "manifest.json"])
def test_damaged_checkpoint_is_reported_and_the_older_one_used(tmp_path, damage, victim):
    save(tmp_path, 1, make_state(1), retention=KEEP)
    newest = save(tmp_path, 2, make_state(2), retention=KEEP)
    damage(newest / victim)
    chosen, state, problems = checkpoint.find(tmp_path)
    assert chosen.name == "step-000000000001"
    assert_same(state, make_state(1))
    assert len(problems) == 1
    assert newest.name in problems[0]


def test_no_sound_checkpoint_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="no usable checkpoint"):
        checkpoint.find(tmp_path)
    flip(save(tmp_path, 1, make_state(), retention=KEEP) / "learner.json")
    with pytest.raises(UserError, match=r"learner\.json was altered"):
        checkpoint.find(tmp_path)


def test_checkpoint_at_the_same_step_is_replaced_unless_identical(tmp_path):
    """With several processes, updates may continue while no env steps arrive."""
    folder = save(tmp_path, 1, make_state(1), retention=KEEP)
    before = (folder / "manifest.json").stat().st_ino
    save(tmp_path, 1, make_state(1), retention=KEEP)
    assert (folder / "manifest.json").stat().st_ino == before
    save(tmp_path, 1, make_state(2), retention=KEEP)
    assert_same(checkpoint.load(folder), make_state(2))
    flip(folder / "store.safetensors")
    save(tmp_path, 1, make_state(2), retention=KEEP)
    assert_same(checkpoint.load(folder), make_state(2))
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]


def test_new_checkpoints_are_kept_after_falling_back_to_an_older_one(tmp_path):
    for step in (10, 20):
        damaged = save(tmp_path, step, make_state(step), retention=Retention(newest=1))
    flip(damaged / "store.safetensors")
    save(tmp_path, 15, make_state(15), retention=Retention(newest=1))
    chosen, _, problems = checkpoint.find(tmp_path)
    assert chosen.name.endswith("15")
    assert len(problems) == 1


def test_checkpoints_later_than_the_chosen_one_are_listed(tmp_path):
    for step in (10, 20, 30):
        folder = save(tmp_path, step, make_state(step), retention=KEEP)
    assert checkpoint.later_than(tmp_path, "newest") == []
    assert checkpoint.later_than(tmp_path, "10") == ["30", "20"]
    flip(folder / "store.safetensors")
    assert checkpoint.later_than(tmp_path, "10") == ["20"], "a damaged checkpoint is not listed"


def test_leftovers_of_a_killed_save_are_ignored_and_removed(tmp_path):
    leftover = tmp_path / ".unfinished-step-000000000009"
    leftover.mkdir()
    (leftover / "learner.json").write_text("{")
    save(tmp_path, 1, make_state(), retention=KEEP)
    assert not leftover.exists()
    assert checkpoint.find(tmp_path)[0].name == "step-000000000001"


def test_checkpoints_contain_no_pickles(tmp_path):
    folder = save(tmp_path, 1, make_state(), retention=KEEP)
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}


def test_all_json_files_are_valid_json(tmp_path):
    """JSON has no NaN and no infinities, which a state may contain."""
    folder = save(tmp_path, 1, make_state(), retention=Retention(best=True), score=1.0)

    def refuse(constant):
        raise AssertionError(f"{file}: {constant}")

    for file in [*folder.glob("*.json"), tmp_path / "best.json"]:
        json.loads(file.read_text(), parse_constant=refuse)


def test_non_finite_score_is_never_the_best(tmp_path):
    retention = Retention(newest=1, best=True)
    for step, score in [(1, float("nan")), (2, 3.0), (3, float("inf")), (4, 2.0), (5, float("nan"))]:
        save(tmp_path, step, make_state(), retention=retention, score=score)
    assert checkpoint.best(tmp_path) == ("step-000000000002", 3.0)
    # As written by earlier versions.
    (tmp_path / "best.json").write_text('{"checkpoint": "step-000000000002", "score": NaN}')
    save(tmp_path, 6, make_state(), retention=retention, score=1.0)
    assert checkpoint.best(tmp_path) == ("step-000000000006", 1.0)


def test_state_that_json_cannot_represent_is_rejected_when_saving(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path, 1, {"part": {"x": object()}}, retention=Retention(newest=1))
    with pytest.raises(TypeError, match="keys that are not strings"):
        save(tmp_path, 1, {"part": {1: 2}}, retention=Retention(newest=1))


def steps_kept(root):
    return [int(folder.name.removeprefix("step-")) for folder in sorted(root.glob("step-*"))]


def test_best_and_periodic_checkpoints_are_kept(tmp_path):
    retention = Retention(newest=2, every=100, best=True)
    for step, score in [(30, 1.0), (60, 9.0), (103, None), (130, 2.0), (160, 3.0), (205, 4.0), (230, 5.0), (260, 6.0)]:
        save(tmp_path, step, make_state(step), retention=retention, score=score)
    assert steps_kept(tmp_path) == [60, 103, 205, 230, 260]
    assert checkpoint.best(tmp_path) == ("step-000000000060", 9.0)
    assert_same(checkpoint.find(tmp_path, "best")[1], make_state(60))
    assert_same(checkpoint.find(tmp_path, "103")[1], make_state(103))
    save(tmp_path, 300, make_state(300), retention=retention, score=10.0)
    assert steps_kept(tmp_path) == [103, 205, 260, 300]


def test_missing_checkpoint_is_an_error_that_lists_existing_ones(tmp_path):
    save(tmp_path, 7, make_state(), retention=KEEP)
    with pytest.raises(UserError, match=r"no checkpoint '8' in .* \(there are: newest, 7\)"):
        checkpoint.find(tmp_path, "8")
    with pytest.raises(UserError, match=r"no best checkpoint in .*: best\.json is not there"):
        checkpoint.find(tmp_path, "best")
    flip(tmp_path / "step-000000000007" / "store.safetensors")
    with pytest.raises(UserError, match="was altered"):
        checkpoint.find(tmp_path, "7")


@pytest.mark.parametrize("which", ["²", "9" * 5000, "-1", "foo", "step-foo", "../step-000000000005", ""])
def test_invalid_checkpoint_names_are_rejected_and_other_folders_ignored(tmp_path, which):
    save(tmp_path, 5, make_state(), retention=KEEP)
    for name in ("step-foo", "step-²", "step-", "step-5x"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"no checkpoint .* \(there are: newest, .*5\)$"):
        checkpoint.find(tmp_path, which)
    assert checkpoint.later_than(tmp_path, "5") == []
    for known in ("newest", "5", "step-000000000005"):
        chosen, _, problems = checkpoint.find(tmp_path, known)
        assert (chosen.name, problems) == ("step-000000000005", [])


def test_of_many_damaged_checkpoints_a_few_are_reported_and_the_oldest_not_tried(tmp_path):
    save(tmp_path, 1, make_state(1), retention=KEEP)
    for step in range(2, checkpoint.TRIED + 1):
        (tmp_path / f"step-{step:012d}").mkdir()
    chosen, _, problems = checkpoint.find(tmp_path)
    assert chosen.name == "step-000000000001"
    assert len(problems) == 4
    assert problems[-1] == f"and {checkpoint.TRIED - 4} more"
    (tmp_path / "step-000000000900").mkdir()
    with pytest.raises(UserError, match=r"of 11 the newest 10 were looked at: name an older one with --checkpoint"):
        checkpoint.find(tmp_path)
    assert checkpoint.find(tmp_path, "1")[0] == chosen


def test_arrays_above_the_limit_of_their_part_are_rejected_before_reading(tmp_path):
    folder = save(tmp_path, 1, make_state(), retention=KEEP)
    sizes = {part: (folder / f"{part}.safetensors").stat().st_size for part in ("learner", "store")}
    assert_same(checkpoint.find(tmp_path, limits=sizes)[1], make_state())
    flip(folder / "store.safetensors")
    with pytest.raises(UserError, match=r"part store has \d+ bytes, which is more than this run can have"):
        checkpoint.find(tmp_path, limits={**sizes, "store": sizes["store"] - 1})


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("{", "is damaged"),
        ('{"checkpoint": "step-000000000009", "score": 1}', "names step-000000000009, which is not there"),
        ('{"checkpoint": "../run", "score": 1}', "is damaged"),
        ('{"checkpoint": "step-000000000001", "score": NaN}', "is damaged"),
    ],
)
def test_invalid_best_json_is_a_clear_error(tmp_path, note, said):
    save(tmp_path, 1, make_state(), retention=Retention(newest=3, best=True), score=1.0)
    assert checkpoint.find(tmp_path, "best")[0].name == "step-000000000001"
    assert checkpoint.best_problem(tmp_path) is None
    (tmp_path / "best.json").write_text(note)
    with pytest.raises(UserError, match=rf"no best checkpoint in .*: best\.json {said}; choose another"):
        checkpoint.find(tmp_path, "best")
    assert said in checkpoint.best_problem(tmp_path)
    assert checkpoint.find(tmp_path)[0].name == "step-000000000001"
