"""Files of a valid form that are far larger, or more numerous, than any run writes."""

import hashlib
import json
import os
import shutil

from corpus import FALLS_BACK, REFUSED, UNHARMED, attack, change_manifest, rewrite


def _lists(count):
    return '{"format": 2, "env_steps": 1, "files": {}, "segments": {"store/x": [' + "[]," * (count - 1) + "[]]}}"


@attack("resume", "eval", ends=FALLS_BACK)
def segments_that_are_a_million_lists(place):
    """One message about each would take gigabytes."""
    (place.newest / "manifest.json").write_text(_lists(990_000))


@attack("resume", ends=FALLS_BACK)
def segments_that_are_slightly_fewer_lists(place):
    (place.newest / "manifest.json").write_text(_lists(90_000))


@attack("resume", "eval", ends=REFUSED)
def hundreds_of_checkpoints_with_manifests_of_many_lists(place):
    checkpoints = place.run / "checkpoints"
    manifest = checkpoints / "manifest.json"
    manifest.write_text(_lists(90_000))
    for i in range(300):
        (checkpoints / f"step-{9 * 10**11 + i}").mkdir()
        os.link(manifest, checkpoints / f"step-{9 * 10**11 + i}" / "manifest.json")


@attack("resume", "eval best", ends=REFUSED)
def thousands_of_empty_checkpoints(place):
    for i in range(5_000):
        (place.run / "checkpoints" / f"step-{9 * 10**11 + i}").mkdir()
    (place.run / "checkpoints" / "best.json").unlink(missing_ok=True)


@attack("eval 1", ends=REFUSED)
def thousands_of_empty_checkpoints_and_a_missing_one_requested(place):
    thousands_of_empty_checkpoints(place)


def _lengthen(place, name, size):
    """Extend a file of arrays to this size with a hole, with a valid header and checksum."""
    file = place.newest / name
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    used = len(content) - end
    header["x"] = {"dtype": "U8", "shape": [size], "data_offsets": [used, used + size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + content[end:]
    file.write_bytes(whole)
    os.truncate(file, len(whole) + size)
    checksum = hashlib.sha256(whole)
    for begin in range(0, size, 2**24):
        checksum.update(bytes(min(2**24, size - begin)))
    entry = {"sha256": checksum.hexdigest(), "bytes": len(whole) + size}
    change_manifest(place.newest, lambda manifest: manifest["files"].update({name: entry}))


@attack("resume", "eval", "info", "init", ends=FALLS_BACK)
def weights_of_a_gigabyte(place):
    """The network has a hundred weights."""
    _lengthen(place, "learner.safetensors", 2**30)


@attack("resume", "info", ends=FALLS_BACK)
def tables_of_a_gigabyte(place):
    _lengthen(place, "store.safetensors", 2**30)


@attack("resume", "eval", ends=FALLS_BACK)
def unknown_parts(place):
    for i in range(15):
        rewrite(place.newest, f"p{i}.json", '{"value": [' + "[]," * 600_000 + "[]]}")


@attack("resume", ends=FALLS_BACK)
def documents_of_many_values(place):
    for part in ("learner", "store", "session", "env", "evaluator", "incarnations"):
        rewrite(place.newest, f"{part}.json", '{"value": [' + "[]," * 1_900_000 + "[]]}")


@attack("resume", ends=FALLS_BACK)
def one_segment_listed_ten_thousand_times(place):
    folder = place.run / "checkpoints" / "segments"
    folder.mkdir()
    (folder / "x").touch()
    os.truncate(folder / "x", 2**28)
    name = hashlib.sha256(bytes(2**28)).hexdigest()
    (folder / "x").rename(folder / f"{name}.bin")
    change_manifest(place.newest, lambda m: m.update(segments={"store/x": [[name, 2**28]] * 10_000}))


# Rows of metrics.


@attack("resume", "branch", "metrics", "report", "csv", ends=REFUSED)
def metrics_that_are_one_line(place):
    os.truncate(place.run / "metrics.jsonl", 2**28)


@attack("resume", "branch", "metrics", "report", ends=REFUSED)
def metrics_of_a_gigabyte(place):
    os.truncate(place.run / "metrics.jsonl", 2**30)


@attack("resume", "metrics", "report", ends=REFUSED)
def metrics_that_are_newlines(place):
    with (place.run / "metrics.jsonl").open("ab") as file:
        for _ in range(150):
            file.write(b"\n" * 2**20)


@attack("resume", "metrics", "report", "csv", ends=REFUSED)
def rows_with_distinct_keys(place):
    with (place.run / "metrics.jsonl").open("a") as file:
        for i in range(30_000):
            row = {"env_steps": 1, **{f"{i}/{key}": 1 for key in range(100)}}
            file.write(json.dumps(row) + "\n")


@attack("csv", "report csv", ends=REFUSED)
def many_rows_of_many_columns(place):
    with (place.run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": 1, **{f"k{key}": 1 for key in range(1_900)}}) + "\n")
        file.write('{"env_steps": 1}\n' * 200_000)


@attack("resume", "metrics", "report", ends=UNHARMED)
def the_maximal_number_of_rows(place):
    with (place.run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1}\n' * 400_000)


# Truncated files.


@attack("resume", "branch", "eval", "play", "show", "info", "export", ends=REFUSED)
def a_truncated_configuration(place):
    """Missing keys must not get defaults: the run would stop at another step."""
    file = place.run / "config.yaml"
    before, found, _ = file.read_text().partition("\nstop:")
    assert found
    file.write_text(before + "\n")


@attack("resume", ends=REFUSED)
def a_configuration_without_one_key(place):
    file = place.run / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    (cut,) = [line for line in lines if line.startswith("  n_step:")]
    file.write_text("".join(line for line in lines if line != cut))


@attack("eval best", "branch best", ends=REFUSED)
def a_truncated_best_json(place):
    note = place.run / "checkpoints" / "best.json"
    note.write_text('{"checkpoint": "step-0000')


@attack("eval best", "branch best", ends=REFUSED)
def a_missing_best_checkpoint(place):
    note = place.run / "checkpoints" / "best.json"
    note.write_text(json.dumps({"checkpoint": place.newest.name, "score": 1.0}))
    shutil.rmtree(place.newest)


@attack("resume", ends=UNHARMED)
def an_unneeded_damaged_best_json(place):
    (place.run / "checkpoints" / "best.json").write_text("{")
