"""Saved tables of one learner become those of several, and vice versa: same steps, items, and priorities."""

from dataclasses import replace

import numpy as np
import pytest

from starling import tree
from starling.config.load import load
from starling.experiment.saved_replay.resharding import reshard, without_tables
from starling.experiment.saved_replay.steps import read_steps
from starling.launch.builders import build_stores
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.launch.runtime import build_runtime

TOY = ["env.id=toy/identity", "env.num=5", "net.torso.hidden=[8]", "stop.return=null"]
DQN = ["algo.learning_starts=50", "algo.fragment=4", "algo.batch=4", "algo.capacity=600", "algo.prioritized.alpha=0.6"]
R2D2 = [
    *["env.args={}", "algo.burn_in=2", "algo.unroll=4", "algo.period=2", "algo.learning_starts=20", "algo.fragment=4"],
    *["algo.batch=4", "algo.capacity=600", "algo.updates_per_step=0.125"],
]


def run_and_state(preset, settings, steps):
    """A run plan and the store's state of a run."""
    run_plan = RunPlan.from_config(load(preset, [*TOY, *settings]))
    runtime = build_runtime(run_plan)
    for _ in runtime.run():
        if runtime.env_steps >= steps:
            break
    runtime.close()
    return run_plan, runtime.store.get_state(with_tables=True)


def with_learners(run_plan, learners):
    return replace(run_plan, config=run_plan.config.model_copy(update={"learners": learners}))


def restored(run_plan, saved):
    stores = build_stores(run_plan, layout_of(run_plan, build_model(run_plan)))
    for i, store in enumerate(stores):
        store.set_state(saved["shards"][str(i)] if "shards" in saved else saved)
        store.check_valid()
    return stores


def contents(stores):
    """Every step of every env, without the truncated beginning of a segment."""
    by_env = {}
    for store in stores:
        for steps in read_steps(store.mixture.tables[0]):
            by_env.setdefault(int(steps.env_index[0]), []).append(steps)
    return {i: tree.concat(parts, axis=0) for i, parts in sorted(by_env.items())}


@pytest.mark.parametrize(("preset", "settings"), [("dqn-cartpole", DQN), ("r2d2-memory", R2D2)])
@pytest.mark.parametrize("steps", [400, 1500])  # before and after the ring is full
def test_resharding_keeps_steps_items_and_priorities(preset, settings, steps):
    one, saved = run_and_state(preset, settings, steps)
    two = with_learners(one, 2)
    resharded = reshard(one, two, saved)
    halves = restored(two, resharded)
    assert [sorted(contents([half])) for half in halves] == [[0, 1, 2], [3, 4]]
    assert sum(half.env_steps for half in halves) == saved["env_steps"]
    (merged,) = restored(one, reshard(two, one, resharded))
    (before,) = restored(one, saved)
    for stores, lost in ((halves, 2), ([merged], 4)):  # the end of an env's steps takes cells in a full ring
        before_by_env, after_by_env = contents([before]), contents(stores)
        assert before_by_env.keys() == after_by_env.keys()
        for i in before_by_env:
            missing = len(before_by_env[i].valid) - len(after_by_env[i].valid)
            assert 0 <= missing <= (lost if steps > 600 else 0)
            wanted = dict(tree.items(tree.map(lambda leaf, n=missing: leaf[n:], before_by_env[i])))
            for name, value in tree.items(after_by_env[i]):
                compare = np.testing.assert_allclose if name == "priority" else np.testing.assert_array_equal
                if name != "policy_version":  # all steps of a fragment get its oldest version
                    compare(value, wanted[name], err_msg=f"{name} of env {i}")
            assert (after_by_env[i].policy_version <= wanted["policy_version"]).all()
            assert steps < 600 or after_by_env[i].policy_version.max() > 0
    if steps < 600:
        assert sum(half.mixture.sizes[0] for half in halves) == before.mixture.sizes[0] == merged.mixture.sizes[0]


def test_resharded_run_keeps_its_replay_ratio():
    one, saved = run_and_state("dqn-cartpole", DQN, 400)
    saved["limiter"]["sampled"] -= 10  # a learner in another process lags behind by some batches
    (store,) = restored(one, saved)
    halves = restored(two := with_learners(one, 2), reshard(one, two, saved))
    for each in (store, *halves):
        drawn = sum(each.sample() is not None for _ in range(20))
        assert abs(drawn - 10) <= 1


def test_resharding_keeps_queued_fragments():
    settings = ["algo.unroll=5", "algo.batch=12", "env.num=6"]
    one, _ = run_and_state("impala-cartpole", settings, 30)
    runtime = build_runtime(one)
    for _ in runtime.run():
        if runtime.store.mixture.sizes[0] == 6:
            break
    saved = runtime.store.get_state(with_tables=True)
    runtime.close()
    halves = restored(two := with_learners(one, 2), reshard(one, two, saved))
    assert [half.mixture.sizes[0] for half in halves] == [3, 3]
    (merged,) = restored(one, reshard(two, one, reshard(one, two, saved)))
    assert merged.mixture.sizes[0] == 6


def test_without_tables_only_the_step_count_is_split():
    run_plan = RunPlan.from_config(load("dqn-cartpole", [*TOY, *DQN]))
    two = with_learners(run_plan, 2)
    resharded = reshard(run_plan, two, {"env_steps": 1001})
    assert resharded == {"env_steps": 1001, "shards": {"0": {"env_steps": 600}, "1": {"env_steps": 401}}}
    assert without_tables(resharded) == resharded
    assert reshard(two, run_plan, resharded) == {"env_steps": 1001}
