"""Decoders of files under random changes: they accept only what can be used, and reject the rest with a clear error.

`make test` runs a few examples; `make fuzz` sets STARLING_FUZZ for more.
"""

import contextlib
import copy
import json
import os
import shutil
from collections import deque

import numpy as np
import pytest
from corpus import SETTINGS, change_export, rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.store_streams import Stream, make_envs, make_layout, stack_of

from starling.config.bounded_json import parse_json
from starling.config.load import load as load_config
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.arrays import parse_arrays
from starling.experiment.run_folder.checkpoint import BrokenCheckpointError
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.experiment.run_folder.rows import Rows
from starling.experiment.run_folder.segments import Stored, what_is_wrong, write_segments
from starling.experiment.saved_replay.from_checkpoint import load_replay
from starling.experiment.saved_replay.start import _read, check_replay
from starling.launch.builders import build_stores
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.state_io import FrozenPart, Joined, freeze, thaw

EXAMPLES = int(os.environ.get("STARLING_FUZZ", "60"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="STARLING_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63, 2**64, 10**39]),
    st.floats(allow_subnormal=False),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def node_paths(node, path=()):
    """The path of every node in JSON."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from node_paths(child, (*path, key))


@st.composite
def changed_json(draw, document):
    """JSON with one to three nodes replaced, removed, or swapped."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = [path for path in node_paths(document) if path]
        if not places:
            return draw(values)
        *parents, last = draw(st.sampled_from(places))
        node = document
        for key in parents:
            node = node[key]
        if draw(st.booleans()):
            node[last] = draw(values)
        elif draw(st.booleans()):
            del node[last]
        else:
            other = document
            for key in draw(st.sampled_from(places)):
                other = other[key] if isinstance(other, dict | list) and _has(other, key) else other
            node[last] = copy.deepcopy(other)
    return document


def _has(node, key):
    return key in node if isinstance(node, dict) else isinstance(key, int) and key < len(node)


@st.composite
def changed_bytes(draw, content):
    """Bytes with some flipped, removed, inserted, or cut off."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, min(len(changed) - 1, 4000))))
        match draw(st.sampled_from(["flip", "cut", "insert", "end"])):
            case "flip" if changed:
                changed[at] ^= draw(st.integers(1, 255))
            case "cut":
                del changed[at : at + draw(st.integers(1, 40))]
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=12))
            case "end":
                del changed[at:]
    return bytes(changed)


@pytest.fixture(scope="module")
def root(sound, tmp_path_factory):
    """Checkpoints to modify, initially with the files of a sound one."""
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoints" / "step-000000000300"
    shutil.copytree(sound / "run" / "checkpoints" / folder.name, folder)
    return folder


@pytest.fixture
def folder(root, sound):
    shutil.copytree(sound / "run" / "checkpoints" / root.name, root, dirs_exist_ok=True)
    return root


def assert_one_line(error):
    assert str(error).isprintable()


def load_or_reject(folder):
    """The state, if it has a valid form."""
    try:
        return checkpoint.load(folder, check=state_check("learner", "store", "session", "incarnations"))
    except BrokenCheckpointError as error:
        assert_one_line(error)
        return None


@fuzz
@given(data=st.data())
def test_fuzz_manifest(folder, data):
    sound = (folder / "manifest.json").read_bytes()
    if data.draw(st.booleans()):
        changed = data.draw(changed_bytes(sound))
    else:
        changed = json.dumps(data.draw(changed_json(json.loads(sound)))).encode()
    (folder / "manifest.json").write_bytes(changed)
    load_or_reject(folder)
    checkpoint.segment_names(folder)
    (folder / "manifest.json").write_bytes(sound)


@fuzz
@given(data=st.data())
def test_fuzz_documents(folder, data):
    part = data.draw(st.sampled_from(["learner", "store", "session", "incarnations", "env", "evaluator"]))
    sound = (folder / f"{part}.json").read_bytes()
    changed = data.draw(st.one_of(changed_bytes(sound), changed_json(json.loads(sound)).map(json.dumps)))
    rewrite(folder, f"{part}.json", changed)
    load_or_reject(folder)
    rewrite(folder, f"{part}.json", sound)


@fuzz
@given(data=st.data())
def test_fuzz_files_of_tensors(folder, data):
    """With modified bytes or JSON in the header."""
    sound = (folder / "learner.safetensors").read_bytes()
    end = 8 + int.from_bytes(sound[:8], "little")
    if data.draw(st.booleans()):
        content = data.draw(changed_bytes(sound))
    else:
        text = json.dumps(data.draw(changed_json(json.loads(sound[8:end])))).encode()
        content = len(text).to_bytes(8, "little") + text + sound[end:]
    with contextlib.suppress(ValueError):
        for array in parse_arrays(np.frombuffer(content, np.uint8)).values():
            array.sum()


@fuzz
@given(st.one_of(st.binary(max_size=200), values.map(json.dumps).map(str.encode)))
def test_fuzz_json_and_rows(tmp_path_factory, content):
    with contextlib.suppress(ValueError):
        parse_json(content)
    file = tmp_path_factory.getbasetemp() / "rows.jsonl"
    file.write_bytes(content)
    assert all(row["env_steps"] >= 0 for row in Rows(file))


@pytest.fixture(scope="module")
def restored(sound):
    """The replay of the run, and the saved state of its tables."""
    replay = load_replay(sound / "run", which="newest", warn=print)
    return replay, freeze({"store": replay.store.get_state(with_tables=True)})["store"]


@fuzz
@given(data=st.data())
def test_fuzz_tables(restored, data):
    """An accepted state can be sampled from, inserted into, and saved again."""
    replay, part = restored
    arrays, document = dict(part.arrays), part.document
    if data.draw(st.booleans()):
        document = data.draw(changed_json(document))
    else:
        name = data.draw(st.sampled_from(sorted(arrays)))
        arrays[name] = data.draw(changed_array(arrays[name]))
    (store,) = build_stores(replay.run_plan, replay.layout)
    try:
        with checkpoint.fitting("it"), np.errstate(all="ignore"):
            try:
                state = thaw(FrozenPart(document, arrays, {}))
                state_check("store")({"store": state})
            except (ValueError, KeyError, TypeError, AttributeError):
                return
            store.set_state(state)
            store.check_valid()
    except UserError as error:
        assert_one_line(error)
        return
    if "tables" in state:
        sample = store.mixture.sample(32)
        assert sample is None or sample.trajectory.valid.shape[1] == 32
        freeze({"store": store.get_state(with_tables=True)})


KINDS = {
    "uniform": {"storage": "ring", "capacity": 60},
    "prioritized": {"storage": "ring", "capacity": 60, "period": 2},
    "fifo": {"storage": "slots", "capacity": 12, "max_times_sampled": 2},
    "ranked": {"storage": "slots", "capacity": 12, "candidate_factor": 2.0, "contest": 2},
}


def make_table(sampler, layout):
    shared = {"name": "t", "length": 3, "fragment": 3, "batch": 4, "sampler": sampler, "min_size": 2}
    return Table(TableSpec(**shared, **KINDS[sampler]), layout, num_envs=2, seed=7)


@pytest.mark.parametrize("sampler", KINDS)
@fuzz
@given(data=st.data())
def test_fuzz_every_kind_of_table(sampler, data):
    """With frame stacks and recurrent states; an accepted state can be sampled from, inserted into, and saved again."""
    layout = make_layout(stack_of(2, 0))
    stream = Stream(make_envs(0, 2, layout), np.arange(2), layout)
    table = make_table(sampler, layout)
    for _ in range(4):
        table.insert(stream.fragment(3))
    part = freeze({"t": table.get_state()})["t"]
    arrays, document = dict(part.arrays), part.document
    if data.draw(st.integers(0, 3)):
        name = data.draw(st.sampled_from(sorted(arrays)))
        arrays[name] = data.draw(changed_array(arrays[name]))
    else:
        document = data.draw(changed_json(document))
    restored = make_table(sampler, layout)
    try:
        with checkpoint.fitting("it"), np.errstate(all="ignore"):
            restored.set_state(thaw(FrozenPart(document, arrays, {})))
            restored.check_valid()
    except UserError as error:
        assert_one_line(error)
        return
    if restored.ring is not None and not np.isin(restored.ring.env_index, [0, 1]).all():
        return  # the code that restores a run rejects these
    for _ in range(2):
        restored.sample(2)
        restored.insert(stream.fragment(3))
    freeze({"t": restored.get_state()})


@st.composite
def changed_array(draw, array):
    """The array with other values, another shape, or another dtype."""
    changed = np.array(array)
    match draw(st.sampled_from(["value", "all", "shape", "type"])):
        case "value" if changed.size:
            at = draw(st.integers(0, changed.size - 1))
            with np.errstate(all="ignore"):
                changed.reshape(-1)[at] = np.float64(draw(numbers)).astype(changed.dtype)
        case "all":
            with np.errstate(all="ignore"):
                changed[...] = np.float64(draw(numbers)).astype(changed.dtype)
        case "shape":
            changed = draw(
                st.sampled_from([changed[:1], changed[..., None], changed.reshape(-1), np.repeat(changed, 2, axis=0)])
            )
        case "type":
            with np.errstate(all="ignore"):
                changed = changed.astype(draw(st.sampled_from(["uint8", "int64", "float32", "float64", "bool"])))
    return changed


@fuzz
@given(data=st.data())
def test_fuzz_segments(tmp_path_factory, data):
    """Bytes that do not match their name are detected; what is read has the declared size."""
    root = tmp_path_factory.mktemp("segments")
    segment = Joined((data.draw(st.binary(min_size=1, max_size=64)),))
    write_segments(root, deque([segment]))
    name, size = segment.name, segment.size
    file = root / "segments" / f"{name}.bin"
    assert what_is_wrong(root, name, size) is None
    sound = file.read_bytes()
    changed = data.draw(changed_bytes(sound))
    file.write_bytes(changed)
    assert (what_is_wrong(root, name, size) is None) == (changed == sound)
    with contextlib.suppress(UserError):
        assert len(Stored(root, name, size).read()) <= size


@pytest.fixture(scope="module")
def new_run():
    """A run that would start with the exported replay."""
    run_plan = RunPlan.from_config(load_config(SETTINGS[0], SETTINGS[1:]))
    return run_plan, layout_of(run_plan, build_model(run_plan))


@pytest.fixture
def export(sound, tmp_path):
    return shutil.copytree(sound / "export", tmp_path / "export")


@fuzz
@given(data=st.data())
def test_fuzz_manifest_of_an_export(export, new_run, data):
    file = export / "manifest.json"
    sound = file.read_bytes()
    changed = data.draw(st.one_of(changed_bytes(sound), changed_json(json.loads(sound)).map(json.dumps)))
    file.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    read_or_reject(export, new_run)
    file.write_bytes(sound)


@fuzz
@given(data=st.data())
def test_fuzz_steps_of_an_export(export, new_run, sound, data):
    def change(columns):
        name = data.draw(st.sampled_from(sorted(columns)))
        columns[name] = np.ascontiguousarray(data.draw(changed_array(columns[name])))

    shutil.copytree(sound / "export", export, dirs_exist_ok=True)
    change_export(export, change)
    read_or_reject(export, new_run)


def read_or_reject(export, new_run):
    """Read all steps of an export, unless it is rejected with a one-line error."""
    run_plan, layout = new_run
    try:
        manifest = check_replay(run_plan, layout, export)
        for entry in manifest.tables.values():
            for steps in _read(entry, layout, run_plan, export):
                assert np.isfinite(steps.obs).all()
                assert len(steps.env_index) == len(steps.valid)
    except UserError as error:
        assert_one_line(error)
