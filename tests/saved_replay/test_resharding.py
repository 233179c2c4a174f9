"""Saved tables of one learner as those of several, and back: the same steps, items and priorities in other hands."""

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


def a_run(preset, settings, steps):
    """A plan and what a run of it saved of its store."""
    run_plan = RunPlan.from_config(load(preset, [*TOY, *settings]))
    runtime = build_runtime(run_plan)
    for _ in runtime.run():
        if runtime.env_steps >= steps:
            break
    runtime.close()
    return run_plan, runtime.store.get_state(with_tables=True)


def shared_by(run_plan, learners):
    return replace(run_plan, config=run_plan.config.model_copy(update={"learners": learners}))


def restored(run_plan, saved):
    stores = build_stores(run_plan, layout_of(run_plan, build_model(run_plan)))
    for i, store in enumerate(stores):
        store.set_state(saved["shards"][str(i)] if "shards" in saved else saved)
        store.check_valid()
    return stores


def contents(stores):
    """Every step of every env row, without what a stretch that is cut begins with."""
    by_row = {}
    for store in stores:
        for steps in read_steps(store.mixture.tables[0]):
            by_row.setdefault(int(steps.row[0]), []).append(steps)
    return {row: tree.concat(parts, axis=0) for row, parts in sorted(by_row.items())}


@pytest.mark.parametrize(("preset", "settings"), [("dqn-cartpole", DQN), ("r2d2-memory", R2D2)])
@pytest.mark.parametrize("steps", [400, 1500])  # before and after the ring is full
def test_steps_items_and_priorities_stay_in_other_hands(preset, settings, steps):
    one, saved = a_run(preset, settings, steps)
    two = shared_by(one, 2)
    parted = reshard(one, two, saved)
    halves = restored(two, parted)
    assert [sorted(contents([half])) for half in halves] == [[0, 1, 2], [3, 4]]
    assert sum(half.env_steps for half in halves) == saved["env_steps"]
    (again,) = restored(one, reshard(two, one, parted))
    (before,) = restored(one, saved)
    for whole, lost in ((halves, 2), ([again], 4)):  # the end of a row takes cells of a full ring
        theirs, ours = contents([before]), contents(whole)
        assert theirs.keys() == ours.keys()
        for row in theirs:
            missing = len(theirs[row].valid) - len(ours[row].valid)
            assert 0 <= missing <= (lost if steps > 600 else 0)
            wanted = dict(tree.items(tree.map(lambda leaf, n=missing: leaf[n:], theirs[row])))
            for name, value in tree.items(ours[row]):
                compare = np.testing.assert_allclose if name == "priority" else np.testing.assert_array_equal
                if name != "policy_version":  # of a fragment of steps the oldest is kept
                    compare(value, wanted[name], err_msg=f"{name} of row {row}")
            assert (ours[row].policy_version <= wanted["policy_version"]).all()
            assert steps < 600 or ours[row].policy_version.max() > 0
    if steps < 600:
        assert sum(half.mixture.sizes[0] for half in halves) == before.mixture.sizes[0] == again.mixture.sizes[0]


def test_learning_goes_on_at_the_same_pace():
    one, saved = a_run("dqn-cartpole", DQN, 400)
    saved["limiter"]["sampled"] -= 10  # batches by which a learner in another process lags behind
    (store,) = restored(one, saved)
    halves = restored(two := shared_by(one, 2), reshard(one, two, saved))
    for each in (store, *halves):
        drawn = sum(each.sample() is not None for _ in range(20))
        assert abs(drawn - 10) <= 1


def test_fragments_that_wait_in_a_queue_go_along():
    settings = ["algo.unroll=5", "algo.batch=12", "env.num=6"]
    one, _ = a_run("impala-cartpole", settings, 30)
    runtime = build_runtime(one)
    for _ in runtime.run():
        if runtime.store.mixture.sizes[0] == 6:
            break
    saved = runtime.store.get_state(with_tables=True)
    runtime.close()
    halves = restored(two := shared_by(one, 2), reshard(one, two, saved))
    assert [half.mixture.sizes[0] for half in halves] == [3, 3]
    (again,) = restored(one, reshard(two, one, reshard(one, two, saved)))
    assert again.mixture.sizes[0] == 6


def test_without_tables_only_the_count_of_steps_is_dealt():
    run_plan = RunPlan.from_config(load("dqn-cartpole", [*TOY, *DQN]))
    two = shared_by(run_plan, 2)
    parted = reshard(run_plan, two, {"env_steps": 1001})
    assert parted == {"env_steps": 1001, "shards": {"0": {"env_steps": 600}, "1": {"env_steps": 401}}}
    assert without_tables(parted) == parted
    assert reshard(two, run_plan, parted) == {"env_steps": 1001}
