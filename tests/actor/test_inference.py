"""Central inference: when a batch is due, and that it acts exactly as local inference."""

import numpy as np
import pytest

from starling import tree
from starling.actor.inference import Batcher
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.types import Fragment


def test_batch_is_due_when_all_possible_envs_wait_or_the_budget_is_spent():
    batcher = Batcher(budget=10.0)
    assert not batcher.due(num_envs=3, possible=4, waited=1.0)
    assert batcher.due(num_envs=4, possible=4, waited=0.0)
    assert batcher.due(num_envs=1, possible=4, waited=10.0)


def test_batch_is_due_at_the_configured_size():
    assert Batcher(target=2, budget=10.0).due(num_envs=2, possible=8, waited=0.0)
    assert Batcher(target=16, budget=10.0).due(num_envs=8, possible=8, waited=0.0)


@pytest.mark.parametrize(("fixed", "each"), [(0.004, 0.0001), (0.0, 0.001), (0.02, 0.00002)])
def test_budget_converges_to_the_fixed_cost_of_a_call(fixed, each):
    batcher, rng = Batcher(), np.random.default_rng(0)
    assert batcher.budget == 0.0
    for _ in range(500):
        num_envs = int(rng.integers(1, 32))
        batcher.took(num_envs, fixed + each * num_envs)
    assert batcher.budget == pytest.approx(fixed, abs=1e-4)


def test_budget_stays_0_while_the_fixed_cost_is_unknown():
    batcher = Batcher()
    for _ in range(100):
        batcher.took(8, 0.01)
    assert batcher.budget == 0.0


def recorded_fragments(settings: list[str], steps: int) -> list[Fragment]:
    """Copies of the fragments that an inline run records; it never has enough of them to learn."""
    runtime = build_runtime(
        RunPlan.from_config(load("impala-cartpole", [*settings, "algo.batch=64", "algo.max_lag=4"]))
    )
    found: list[Fragment] = []
    insert = runtime.store.insert

    def keep(fragment: Fragment) -> None:
        found.append(tree.map(np.array, fragment))
        insert(fragment)

    runtime.store.insert = keep
    for _, _ in zip(range(steps), runtime.run(), strict=False):
        pass
    runtime.close()
    return found


def _name(fragment: Fragment) -> tuple[int, int]:
    return fragment.actor_id, fragment.sequence


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_local_and_central_inference_record_the_same(core):
    """The same actions, states, log-probabilities, and rewards; float sums may differ slightly with the batch size."""
    settings = ["env.id=toy/counting", "env.num=4", "actors=2", f"net.core.kind={core}", "algo.unroll=5"]
    local = recorded_fragments([*settings, "inference=local"], 30)
    central = recorded_fragments([*settings, "inference=central"], 30)
    assert len(local) == len(central) > 8
    for mine, theirs in zip(sorted(local, key=_name), sorted(central, key=_name), strict=True):
        for (name, a), (_, b) in zip(tree.items(mine), tree.items(theirs), strict=True):
            if np.asarray(a).dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(a, b, err_msg=name)
