"""Checkpoints that no run writes, with valid checksums wherever there is one."""

import json
import os
import pickle
import shutil

import numpy as np
from corpus import (
    FALLS_BACK,
    REFUSED,
    UNHARMED,
    UNTOUCHED,
    attack,
    change_array,
    change_document,
    change_header,
    change_manifest,
    rewrite,
    sign,
)

DEEP = 100_000
DIGITS = 5_000


class Bomb:
    """Code that unpickling would execute."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def _deep_document():
    return '{"dict": {"a": ' * DEEP + '{"value": 1}' + "}}" * DEEP


def _deep_value():
    return '{"dict": {"version": {"value": ' + "[" * DEEP + "]" * DEEP + "}}}"


# The manifest.


@attack("resume", "eval", "info", ends=FALLS_BACK)
def a_manifest_that_is_a_list(place):
    change_manifest(place.newest, lambda manifest: [manifest])


@attack("resume", ends=FALLS_BACK)
def a_manifest_that_is_deep(place):
    (place.newest / "manifest.json").write_text("[" * DEEP + "]" * DEEP)


@attack("resume", ends=FALLS_BACK)
def a_manifest_with_a_long_integer(place):
    (place.newest / "manifest.json").write_text('{"format": 2, "env_steps": ' + "9" * DIGITS + "}")


@attack("resume", ends=FALLS_BACK)
def a_manifest_of_millions_of_lists(place):
    """A list can take three bytes in a file and 64 bytes in memory."""
    (place.newest / "manifest.json").write_bytes(b'{"format": 2, "files": [' + b"[]," * 5_000_000 + b"[]]}")


@attack("resume", ends=FALLS_BACK)
def a_manifest_of_a_terabyte(place):
    """A sparse file takes no space in an archive."""
    os.truncate(place.newest / "manifest.json", 2**40)


@attack("resume", ends=FALLS_BACK)
def a_manifest_that_is_not_utf8(place):
    (place.newest / "manifest.json").write_bytes(b'{"format": 2, "\xff": 1}')


@attack("resume", ends=FALLS_BACK)
def a_format_that_is_true(place):
    """In Python True equals 1."""
    change_manifest(place.newest, lambda manifest: {**manifest, "format": True})


@attack("resume", ends=FALLS_BACK)
def a_format_with_control_characters(place):
    change_manifest(place.newest, lambda manifest: {**manifest, "format": "2\nerror: \x1b[31m" * 1000})


@attack("resume", ends=FALLS_BACK)
def files_that_are_a_list(place):
    change_manifest(place.newest, lambda manifest: {**manifest, "files": [*manifest["files"]]})


@attack("resume", ends=FALLS_BACK)
def sizes_that_are_text(place):
    change_manifest(place.newest, lambda m: m["files"]["learner.json"].update(bytes="many"))


@attack("resume", ends=FALLS_BACK)
def a_negative_size(place):
    change_manifest(place.newest, lambda m: m["files"]["learner.json"].update(bytes=-1))


def _move_outside(place, name):
    """Let the manifest refer to a file that is not in the checkpoint."""
    shutil.copy(place.newest / "learner.json", place.outside / "learner.json")

    def change(manifest):
        manifest["files"][name] = manifest["files"].pop("learner.json")

    change_manifest(place.newest, change)


@attack("resume", "eval", ends=FALLS_BACK)
def a_name_that_leads_outside(place):
    _move_outside(place, "../../../outside/learner.json")


@attack("resume", "eval", ends=FALLS_BACK)
def an_absolute_name(place):
    _move_outside(place, str(place.outside / "learner.json"))


@attack("resume", ends=FALLS_BACK)
def a_name_with_a_zero_byte(place):
    _move_outside(place, "learner\0.json")


@attack("resume", "eval", ends=FALLS_BACK)
def tensors_that_the_manifest_does_not_list(place):
    """Their checksum would not be checked."""
    change_manifest(place.newest, lambda manifest: manifest["files"].pop("learner.safetensors") and None)


@attack("resume", ends=FALLS_BACK)
def a_segment_that_leads_outside(place):
    segments = {"store/x": [["../../../outside/precious", 14]]}
    change_manifest(place.newest, lambda manifest: manifest.update(segments=segments))


@attack("resume", ends=FALLS_BACK)
def a_segment_of_negative_size(place):
    segments = {"store/x": [["0" * 64, -1]]}
    change_manifest(place.newest, lambda manifest: manifest.update(segments=segments))


@attack("resume", ends=FALLS_BACK)
def segments_that_are_numbers(place):
    change_manifest(place.newest, lambda manifest: manifest.update(segments={"store/x": [3]}))


@attack("resume", ends=FALLS_BACK)
def a_segment_of_a_terabyte(place):
    """Its checksum would take an hour."""
    folder = place.run / "checkpoints" / "segments"
    folder.mkdir()
    (folder / f"{'0' * 64}.bin").touch()
    os.truncate(folder / f"{'0' * 64}.bin", 2**40)
    segments = {"store/x": [["0" * 64, 2**40]]}
    change_manifest(place.newest, lambda manifest: manifest.update(segments=segments))


@attack("resume", ends=FALLS_BACK)
def tensors_of_a_terabyte(place):
    """Larger than any memory, and an hour to check."""
    os.truncate(place.newest / "learner.safetensors", 2**43)
    change_manifest(place.newest, lambda m: m["files"]["learner.safetensors"].update(bytes=2**43))


# Documents.


@attack("resume", "eval", "play", "export", ends=FALLS_BACK)
def a_document_that_is_deep(place):
    rewrite(place.newest, "learner.json", _deep_document())


@attack("resume", "eval", ends=FALLS_BACK)
def a_value_that_is_deep(place):
    rewrite(place.newest, "learner.json", _deep_value())


@attack("resume", ends=FALLS_BACK)
def text_in_a_document_that_is_deep(place):
    change_document(place.newest, "session", "evaluated", {"python": "[" * DEEP})


@attack("resume", ends=FALLS_BACK)
def a_document_that_is_null(place):
    rewrite(place.newest, "learner.json", "null")


@attack("resume", ends=FALLS_BACK)
def a_document_with_two_kinds(place):
    rewrite(place.newest, "learner.json", '{"value": 1, "dict": {}}')


@attack("resume", ends=FALLS_BACK)
def a_document_of_an_unknown_kind(place):
    rewrite(place.newest, "learner.json", '{"pickle": "gASV"}')


@attack("resume", ends=FALLS_BACK)
def a_missing_tensor(place):
    change_document(place.newest, "learner", "timeline/points", {"tensor": "learner/nothing"})


@attack("resume", ends=FALLS_BACK)
def a_tensor_whose_name_is_a_list(place):
    change_document(place.newest, "learner", "timeline/points", {"tensor": ["learner"]})


@attack("resume", "eval", ends=FALLS_BACK)
def a_missing_learner(place):
    (place.newest / "learner.json").unlink()
    sign(place.newest)


@attack("resume", ends=FALLS_BACK)
def a_missing_session(place):
    (place.newest / "session.json").unlink()
    sign(place.newest)


@attack("resume", "info", ends=FALLS_BACK)
def a_missing_store(place):
    for name in ("store.json", "store.safetensors"):
        (place.newest / name).unlink()
    sign(place.newest)


@attack("resume", "eval", ends=FALLS_BACK)
def a_version_that_is_text(place):
    change_document(place.newest, "learner", "updates", {"value": "16"})


@attack("resume", "eval", ends=FALLS_BACK)
def a_version_of_five_thousand_digits(place):
    text = (place.newest / "learner.json").read_text()
    rewrite(place.newest, "learner.json", text.replace('"updates": {"value": ', '"updates": {"value": ' + "9" * DIGITS))


@attack("resume", "eval", ends=FALLS_BACK)
def a_negative_version(place):
    change_document(place.newest, "learner", "updates", {"value": -1})


@attack("resume", "eval", ends=FALLS_BACK)
def a_model_that_is_a_list(place):
    change_document(place.newest, "learner", "model", {"value": [1, 2]})


@attack("resume", "eval", ends=FALLS_BACK)
def weights_that_are_numbers(place):
    document = json.loads((place.newest / "learner.json").read_text())
    for name in document["dict"]["model"]["dict"]:
        document["dict"]["model"]["dict"][name] = {"value": 1.0}
    rewrite(place.newest, "learner.json", json.dumps(document))


@attack("resume", ends=FALLS_BACK)
def rows_that_are_text(place):
    change_document(place.newest, "session", "rows", {"value": "all"})


@attack("resume", ends=FALLS_BACK)
def scores_that_are_text(place):
    change_document(place.newest, "session", "scores/totals", {"value": ["a"]})


@attack("resume", ends=FALLS_BACK)
def incarnations_that_are_text(place):
    change_document(place.newest, "incarnations", "0", {"value": "first"})


@attack("resume", ends=FALLS_BACK)
def negative_env_steps(place):
    change_document(place.newest, "env", "steps", {"value": -(10**30)})


@attack("resume", ends=REFUSED)
def all_checkpoints_are_damaged(place):
    for folder in (place.run / "checkpoints").glob("step-*"):
        rewrite(folder, "learner.json", _deep_document())


# Files of tensors.


@attack("resume", "eval", "play", ends=FALLS_BACK)
def a_pickle_named_safetensors(place):
    """Nothing is ever unpickled."""
    rewrite(place.newest, "learner.safetensors", pickle.dumps(Bomb()))


@attack("resume", ends=FALLS_BACK)
def an_empty_file_of_tensors(place):
    rewrite(place.newest, "learner.safetensors", b"")


@attack("resume", ends=FALLS_BACK)
def a_header_longer_than_its_file(place):
    rewrite(place.newest, "learner.safetensors", (2**63).to_bytes(8, "little") + b"{}")


@attack("resume", ends=FALLS_BACK)
def a_header_that_is_deep(place):
    rewrite(place.newest, "learner.safetensors", (2 * DEEP).to_bytes(8, "little") + b"[" * DEEP + b"]" * DEEP)


def _change_first(place, **change):
    def edit(header):
        header[min(header)].update(change)

    rewrite(place.newest, "learner.safetensors", change_header(place.newest / "learner.safetensors", edit))


@attack("resume", "eval", ends=FALLS_BACK)
def an_impossible_shape(place):
    _change_first(place, shape=[2**62, 2**62])


@attack("resume", ends=FALLS_BACK)
def a_shape_with_no_values_and_a_long_axis(place):
    _change_first(place, shape=[0, 2**62, 2**62], data_offsets=[0, 0])


@attack("resume", ends=FALLS_BACK)
def a_negative_shape(place):
    _change_first(place, shape=[-1, -4])


@attack("resume", ends=FALLS_BACK)
def offsets_outside_the_file(place):
    _change_first(place, data_offsets=[0, 2**60])


@attack("resume", ends=FALLS_BACK)
def offsets_that_overlap(place):
    def edit(header):
        for entry in header.values():
            entry["data_offsets"] = [0, entry["data_offsets"][1] - entry["data_offsets"][0]]

    rewrite(place.newest, "learner.safetensors", change_header(place.newest / "learner.safetensors", edit))


@attack("resume", "eval", ends=FALLS_BACK)
def bfloat16(place):
    """A dtype that numpy does not have."""
    _change_first(place, dtype="BF16")


@attack("resume", ends=FALLS_BACK)
def a_type_that_is_a_list(place):
    _change_first(place, dtype=["F32"])


@attack("resume", ends=REFUSED)
def weights_of_another_shape(place):
    change_array(place.newest, "learner", "heads.extrinsic.q.bias", lambda array: np.zeros(7, np.float32))


@attack("resume", "eval", ends=REFUSED)
def a_weight_with_control_characters_in_its_name(place):
    document = json.loads((place.newest / "learner.json").read_text())
    model = document["dict"]["model"]["dict"]
    model["\x1b[31m\nerror: a"] = next(iter(model.values()))
    rewrite(place.newest, "learner.json", json.dumps(document))


# States of a valid form that no run could have saved.


@attack("resume", ends=REFUSED)
def huge_env_index(place):
    """A table by env index would take eight terabytes."""
    change_array(place.newest, "store", "storage/env_index", lambda indices: indices + 2**40)


@attack("resume", ends=REFUSED)
def env_indices_of_another_run(place):
    change_array(place.newest, "store", "storage/env_index", lambda indices: indices + 5)


@attack("resume", "info", ends=REFUSED)
def sequences_in_the_future(place):
    change_array(place.newest, "store", "windows/steps", lambda steps: np.full_like(steps, 10**6))


@attack("resume", "export", ends=REFUSED)
def sequences_of_negative_length(place):
    change_array(place.newest, "store", "windows/steps", lambda steps: np.full_like(steps, -5))


@attack("resume", ends=REFUSED)
def more_cells_than_the_ring_has(place):
    change_array(place.newest, "store", "windows/steps", lambda steps: np.tile(steps, 100))


@attack("resume", ends=REFUSED)
def priorities_that_are_nan(place):
    change_array(place.newest, "store", "tree/leaves", lambda leaves: np.full_like(leaves, np.nan))


@attack("resume", ends=REFUSED)
def priorities_of_another_table(place):
    change_array(place.newest, "store", "tree/leaves", lambda leaves: leaves[:3])


@attack("resume", ends=REFUSED)
def tables_that_are_text(place):
    change_document(place.newest, "store", "tables", {"value": "replay"})


@attack("resume", ends=REFUSED)
def a_limiter_of_text(place):
    change_document(place.newest, "store", "limiter/steps", {"value": "many"})


@attack("resume", ends=REFUSED)
def a_generator_of_another_kind(place):
    change_document(place.newest, "learner", "rng/bit_generator", {"value": "os"})


@attack("resume", ends=REFUSED)
def moments_of_another_shape(place):
    """A fused kernel would read beyond them."""
    change_array(place.newest, "learner", "exp_avg", lambda moment: moment[:2])


def _change_group(place, **change):
    document = json.loads((place.newest / "learner.json").read_text())
    optimizer = next(iter(document["dict"]["optimizers"]["dict"].values()))
    group = optimizer["dict"]["groups"]["dict"]["0"]["dict"]
    group.update({name: {"value": value} for name, value in change.items()})
    rewrite(place.newest, "learner.json", json.dumps(document))


@attack("resume", "branch", ends=REFUSED)
def a_learning_rate_that_is_text(place):
    _change_group(place, lr="fast")


@attack("resume", ends=UNHARMED)
def an_unknown_optimizer_setting(place):
    _change_group(place, step="now")


@attack("branch", ends=UNHARMED)
def a_schedule_with_another_attribute(place):
    """torch sets any given attribute on the schedule."""
    document = json.loads((place.newest / "learner.json").read_text())
    optimizer = next(iter(document["dict"]["optimizers"]["dict"].values()))
    optimizer["dict"]["schedule"]["dict"]["step"] = {"value": 1}
    rewrite(place.newest, "learner.json", json.dumps(document))


@attack("resume", ends=REFUSED)
def a_timeline_that_stands_still(place):
    change_document(place.newest, "learner", "timeline/stride", {"value": 0})


# Files beside checkpoints.


@attack("resume", "eval", ends=UNHARMED)
def a_folder_named_almost_like_a_checkpoint(place):
    for name in ("step-foo", "step-²", "step-", "step-1", f"step-{'9' * 100}"):
        (place.run / "checkpoints" / name).mkdir()


@attack("eval ²", ends=REFUSED)
def a_checkpoint_that_is_not_a_number(place):
    """For Python, ² is a digit."""


@attack("eval best", ends=REFUSED)
def a_best_checkpoint_that_is_deep(place):
    (place.run / "checkpoints" / "best.json").write_text("[" * DEEP)


@attack("eval best", ends=REFUSED)
def a_best_checkpoint_that_leads_outside(place):
    note = {"checkpoint": "../../outside", "score": 1.0}
    (place.run / "checkpoints" / "best.json").write_text(json.dumps(note))


@attack("resume", ends=UNHARMED)
def foreign_files_among_segments(place):
    """Only files written by a run are removed."""
    folder = place.run / "checkpoints" / "segments"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")


@attack("resume", "metrics", "report", ends=REFUSED)
def metrics_of_a_terabyte(place):
    os.truncate(place.run / "metrics.jsonl", 2**40)


@attack("resume", "metrics", "report", ends=UNHARMED)
def rows_of_metrics_of_every_kind(place):
    rows = [
        "[" * DEEP,
        '{"env_steps": ' + "9" * DIGITS + "}",
        '{"env_steps": 1, "episodes": "many"}',
        '{"env_steps": 2, "return": {"a": 1}}',
        '{"env_steps": 3, "return": "\\u001b[31m"}',
        '{"env_steps": 4}',
        '{"env_steps": 5, "return": 1e999, "episodes": null}',
        '{"env_steps": true}',
        '{"env_steps": -1}',
    ]
    file = place.run / "metrics.jsonl"
    file.write_text("\n".join([*rows, file.read_text()]))


@attack("resume", ends=UNTOUCHED)
def the_note_on_the_best_is_a_folder(place):
    """It could not be written at the next save."""
    (place.run / "checkpoints" / "best.json").unlink(missing_ok=True)
    (place.run / "checkpoints" / "best.json").mkdir()
