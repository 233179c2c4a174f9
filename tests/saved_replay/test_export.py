"""An export can be read with numpy and safetensors alone, as docs/replay-format.md says; damage is reported."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from starling import tree
from starling.errors import UserError
from starling.experiment.saved_replay.export import export_replay
from starling.experiment.saved_replay.manifest import read_manifest, read_part


def read_as_documented(folder, table="replay"):
    """Read rows of {column: value} with whole stacks, independently of this package."""
    manifest = json.loads((folder / "manifest.json").read_text())
    stack, rows = manifest["stack"], []
    for part in manifest["tables"][table]["parts"]:
        content = (folder / part["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        columns = load_file(folder / part["file"])
        starts = np.cumsum(columns["priority"] > 0) - 1
        whole_stacks = dict(zip(columns.get("stack_at", np.zeros(0)).tolist(), columns.get("stack", []), strict=True))
        previous = None
        for i in range(part["steps"]):
            row = {name: columns[name][i] for name in manifest["columns"] if not name.startswith("carry/")}
            if row["priority"] > 0:
                carries = [name for name in columns if name.startswith("carry/")]
                row |= {name: columns[name][starts[i]] for name in carries}
            if stack is not None:
                frame, axis = row["obs"], stack["axis"]
                slid = None if i in whole_stacks else np.delete(previous, range(frame.shape[axis]), axis)
                previous = row["obs"] = whole_stacks[i] if i in whole_stacks else np.concatenate([slid, frame], axis)
            rows.append(row)
    return manifest, rows


@pytest.mark.parametrize("name", ["cartpole", "wrapped", "pong", "memory"])
def test_every_item_can_be_rebuilt_from_the_documented_format(name, exported, saved):
    manifest, rows = read_as_documented(exported(name))
    (table,) = saved(name).store.mixture.tables
    assert len(manifest["tables"]["replay"]["parts"]) > 2
    begins = [i for i, row in enumerate(rows) if row["priority"] > 0]
    items = table.ring.items()
    assert len(begins) == len(items.slots) == table.size == manifest["tables"]["replay"]["items"] > 100
    assert manifest["tables"]["replay"]["steps"] == sum(bool(row["valid"]) for row in rows)
    np.testing.assert_array_equal([rows[i]["priority"] for i in begins], table.priorities(items.slots))
    for place, (i, slot, steps) in enumerate(zip(begins, items.slots, items.steps, strict=True)):
        sequence = table.ring.gather(np.array([slot]))
        assert rows[i]["env_index"] == items.env_index[place]
        assert rows[i]["first"] == sequence.first[0, 0]
        for t in range(steps + 1):
            np.testing.assert_array_equal(rows[i + t]["obs"], sequence.obs[t, 0])
        for t in range(steps):
            assert rows[i + t]["valid"]
            assert rows[i + t]["action"] == sequence.action[t, 0]
            assert rows[i + t]["rewards/extrinsic"] == sequence.rewards["extrinsic"][t, 0]
            assert rows[i + t]["terminated"] == sequence.terminated[t, 0]
        for path, leaf in tree.items(sequence.carry):
            np.testing.assert_array_equal(rows[i][f"carry/{path}"], leaf[0])


def test_existing_folder_is_rejected_and_failed_exports_leave_no_files(saved, tmp_path):
    existing = tmp_path / "taken"
    existing.mkdir()
    with pytest.raises(UserError, match="exists already"):
        export_replay(saved("wrapped"), existing)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        export_replay(saved("wrapped"), tmp_path / "file" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
    assert list(existing.iterdir()) == []


def damage_cut(folder):
    file = folder / "replay-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    return "replay-00001.safetensors has"


def damage_alter(folder):
    file = folder / "replay-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    return "replay-00002.safetensors was altered"


def damage_remove(folder):
    (folder / "replay-00000.safetensors").unlink()
    return "replay-00000.safetensors is missing"


def damage_manifest(folder):
    file = folder / "manifest.json"
    file.write_text(file.read_text()[:-40])
    return "manifest.json is damaged"


def damage_path(folder):
    file = folder / "manifest.json"
    file.write_text(file.read_text().replace("replay-00000.safetensors", "../other.safetensors"))
    return "manifest.json is damaged"


def damage_format(folder):
    file = folder / "manifest.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 7'))
    return "has format 7"


def read_all(folder):
    return [read_part(folder, part) for part in read_manifest(folder).tables["replay"].parts]


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_alter, damage_remove, damage_manifest, damage_path, damage_format]
)
def test_damage_is_a_clear_error(damage, exported, tmp_path):
    folder = shutil.copytree(exported("cartpole"), tmp_path / "copy")
    message = damage(folder)
    with pytest.raises(UserError, match=message):
        read_all(folder)
