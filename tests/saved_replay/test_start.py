"""A new run that starts with an exported replay has its items and priorities, and learns from them at once."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from starling.config.load import load
from starling.errors import UserError
from starling.experiment.saved_replay.start import begin_with_replay
from starling.experiment.saved_replay.steps import read_steps
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

FULL = ("wrapped", "pong", "memory")
SAME = ("obs", "first", "action", "rewards", "terminated", "truncated", "valid", "extras", "carry")


def begin(source, settings):
    """The runtime of a new run whose tables were filled from `source`."""
    preset, *rest = settings
    run_plan = RunPlan.from_config(load(preset, [*rest, f"replay_from={source}"]))
    runtime = build_runtime(run_plan)
    assert str(source) in begin_with_replay(run_plan, runtime)
    return runtime


def sequence_fields(table, slots):
    taken = table.ring.gather(slots)
    return {name: getattr(taken, name) for name in SAME}


def as_bytes(table):
    """Every item as bytes with its priority, ordered by env and age, independent of slots."""
    slots = table.ring.items().slots
    found = []
    for slot, priority in zip(slots, table.priorities(slots), strict=True):
        leaves = [np.ascontiguousarray(leaf).tobytes() for leaf in _leaves(sequence_fields(table, np.array([slot])))]
        found.append((b"".join(leaves), round(float(priority), 9)))
    return found


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in _leaves(child)]
    return [leaf for child in value for leaf in _leaves(child)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name", ["cartpole", "wrapped", "pong", "memory"])
@pytest.mark.parametrize("envs", ["same", "more"])
def test_items_and_priorities_are_those_of_the_export(name, envs, exported, saved, settings_of):
    """Except for the oldest item of a full ring, which needs a cell for the end of its last episode."""
    larger = ["env.num=3", "algo.capacity=3000"] if envs == "more" else []
    runtime = begin(exported(name), [*settings_of(name), *larger])
    (old,), (new,) = saved(name).store.mixture.tables, runtime.store.mixture.tables
    new.check_valid()
    new_items, old_items = as_bytes(new), as_bytes(old)
    if envs == "same":
        lost_per_env = np.bincount(old.ring.items().env_index) - np.bincount(new.ring.items().env_index)
        assert all(lost in ((0, 1) if name in FULL else (0,)) for lost in lost_per_env)
        begins = np.cumsum([0, *np.bincount(old.ring.items().env_index)])[:-1]
        oldest = {begin + i for begin, lost in zip(begins, lost_per_env, strict=True) for i in range(lost)}
        assert new_items == [item for i, item in enumerate(old_items) if i not in oldest]
    else:
        assert sorted(new_items) == sorted(old_items)
    assert (new.ring.gather(new.ring.items().slots[:1]).policy_version == 0).all()
    assert runtime.env_steps == runtime.store.env_steps == 0
    runtime.close()


def test_one_update_is_possible_at_once_and_then_as_many_as_new_steps_allow(exported, settings_of):
    runtime = begin(exported("cartpole"), [*settings_of("cartpole"), "algo.updates_per_step=0.25"])
    result = runtime.learner.step(runtime.store.sample(), 0)
    runtime.store.update_priorities(result.keys, result.priorities)
    assert runtime.store.sample() is None
    steps = runtime.run()
    while runtime.env_steps < 128:
        next(steps)
    inserted = runtime.store.env_steps
    assert 96 <= inserted <= runtime.env_steps
    assert 1 + inserted * 0.25 - 1 <= runtime.updates <= 1 + runtime.env_steps * 0.25
    runtime.store.check_valid()
    runtime.close()


def test_sequences_of_another_length_are_rebuilt_with_new_priorities(exported, saved, settings_of):
    runtime = begin(exported("cartpole"), [*settings_of("cartpole"), "algo.n_step=1"])
    (old,), (new,) = saved("cartpole").store.mixture.tables, runtime.store.mixture.tables
    assert new.size == sum(int(steps.valid.sum()) for steps in read_steps(old))
    assert set(new.priorities(new.ring.items().slots)) == {1.0}
    runtime.close()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cartpole", ["env.id=Acrobot-v1"], "the action space is Discrete.2. there and Discrete.3. here"),
        ("cartpole", ["env.reward_clip=0.5"], "env.reward_clip is None there and 0.5 here"),
        ("cartpole", ["algo.name=apex"], "extras/.* is missing there"),
        ("memory", ["algo.unroll=10"], "length 20, period 2, burn-in 2.*length 12"),
    ],
)
def test_incompatible_replay_is_a_one_line_error(name, change, message, exported, settings_of):
    with pytest.raises(UserError, match=message) as error:
        begin(exported(name), [*settings_of(name), *change])
    assert len(str(error.value).splitlines()) == 1


def test_other_reward_streams_are_a_clear_error(exported, settings_of, tmp_path):
    folder = shutil.copytree(exported("cartpole"), tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["columns"]["rewards/rnd"] = manifest["columns"]["rewards/extrinsic"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"reward streams is \['extrinsic', 'rnd'\] there and \['extrinsic'\] here"):
        begin(folder, settings_of("cartpole"))


def test_altered_export_is_rejected(exported, settings_of, tmp_path):
    folder = shutil.copytree(exported("cartpole"), tmp_path / "copy")
    last = max(folder.glob("*.safetensors"))
    content = bytearray(last.read_bytes())
    content[-3] ^= 1
    last.write_bytes(content)
    with pytest.raises(UserError, match=f"{last.name} was altered"):
        begin(folder, settings_of("cartpole"))


def test_segment_without_a_final_observation_is_rejected(exported, settings_of, tmp_path):
    folder = shutil.copytree(exported("cartpole"), tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    for part in manifest["tables"]["replay"]["parts"]:
        columns = load_file(folder / part["file"])
        content = save({**columns, "valid": np.ones_like(columns["valid"])})
        (folder / part["file"]).write_bytes(content)
        part |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="whose last observation is marked as valid"):
        begin(folder, settings_of("cartpole"))


def test_algorithm_with_a_queue_cannot_start_from_a_replay(exported):
    with pytest.raises(UserError, match="ppo learns from a queue"):
        begin(exported("cartpole"), ["ppo-cartpole"])
