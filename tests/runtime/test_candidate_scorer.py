"""Mixed batches in whole runs: shares, ranked selection, concurrent scoring, and bitwise resuming."""

import copy
import time

import numpy as np
import pytest
import torch

from starling import tree
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

ELITE = (
    "algo.sources=[{kind: queue, share: 0.5}, {kind: elite, share: 0.25, capacity: 40, selection: grouped, contest: 5},"
    " {kind: attentive, share: 0.25, capacity: 40, features: network, distance: cosine}]"
)
SMALL = ["env.num=8", "algo.unroll=6", "algo.batch=8", "net.torso.hidden=[16]", ELITE]


def build(*more):
    return build_runtime(RunPlan.from_config(load("impala-cartpole", [*SMALL, *more])))


def run(runtime, updates, steps=None):
    for _ in steps or runtime.run():
        if runtime.updates >= updates:
            return runtime
    raise AssertionError


def test_batches_have_every_source_with_its_share():
    runtime = build()
    sources, step = [], runtime.learner.algorithm.loss

    def spy(model, target, batch):
        sources.append(batch.source.tolist())
        return step(model, target, batch)

    runtime.learner._loss = spy
    run(runtime, 30)
    assert all(source == [0] * 4 + [1] * 2 + [2] * 2 for source in sources)
    metrics = runtime.drain_metrics()
    assert metrics["loss/elite/lag"] > metrics["loss/queue/lag"]
    means = [metrics[f"loss/{name}/entropy"] for name in ("queue", "elite", "attentive")]
    assert metrics["loss/entropy"] == pytest.approx(np.average(means, weights=[4, 2, 2]), rel=0.05)


def test_nearest_candidates_are_selected():
    """The selected items have a smaller mean distance than all candidates, as computed by the network itself."""
    source = "{kind: elite, share: 0.5, capacity: 100, lambda: 8, anneal: null}"
    runtime = build(f"algo.sources=[{{kind: queue, share: 0.5}}, {source}]", "algo.optimizer.args.lr=0.01")
    run(runtime, 60)
    table, learner = runtime.store.mixture.tables[1], runtime.learner
    candidates = table.draw_candidates(4, 0.0)
    steps = tree.to_torch(candidates.trajectory)
    with torch.no_grad():
        distances = learner.algorithm.score(learner.model, 1, steps, steps).numpy()
    selected = table.select(candidates, 4, distances).keys.slot
    assert len(distances) == 32
    assert selected.tolist() == candidates.keys.slot[np.argsort(distances)[:4]].tolist()
    assert distances[np.argsort(distances)[:4]].mean() < 0.8 * distances.mean()


def test_run_with_candidate_sources_resumes_bitwise():
    one = run(build("checkpoint.exact=true"), 20)
    state = copy.deepcopy(one.save(with_tables=True))  # a deep copy: a state from a file shares nothing with the run
    other = build("checkpoint.exact=true")
    other.restore(state)
    ends = []
    for runtime in (one, other):
        run(runtime, 40)
        weights = [parameter.detach().clone() for parameter in runtime.learner.model.parameters()]
        ends.append((weights, runtime.store.get_state(with_tables=True)["tables"]["elite"]["sampler"]))
        runtime.close()
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0], strict=True))
    for name, values in ends[0][1].items():
        np.testing.assert_array_equal(values, ends[1][1][name])


@pytest.mark.parametrize("inference", ["local", "central"])
def test_with_processes_scoring_has_its_own_thread_and_metrics(inference):
    runtime = build("runtime=processes", "actors=2", f"inference={inference}", "algo.max_lag=2")
    try:
        steps = runtime.run()
        run(runtime, 20, steps)
        runtime.drain_metrics()
        run(runtime, 120, steps)
        metrics = runtime.drain_metrics()
    finally:
        runtime.close()
    assert 0 < metrics["time/scoring/busy"] <= 1
    assert metrics["time/scoring/ms"] > 0
    assert metrics["store/elite/size"] == 40
    assert metrics["store/elite/evicted"] > 0
    assert metrics["loss/elite/lag"] > 0


def test_scoring_time_is_reported_in_milliseconds_per_batch(monkeypatch):
    runtime = build()
    algorithm = runtime.learner.algorithm
    score = algorithm.score

    def slowly(*args):
        time.sleep(0.02)
        return score(*args)

    monkeypatch.setattr(algorithm, "score", slowly)
    try:
        steps = runtime.run()
        run(runtime, 2, steps)
        runtime.drain_metrics()
        run(runtime, 6, steps)
        assert 20 <= runtime.drain_metrics()["time/scoring/ms"] < 2000
    finally:
        runtime.close()


def test_error_in_scoring_ends_the_run_with_its_own_message(monkeypatch):
    runtime = build("runtime=processes", "actors=1")

    def broken(*args):
        raise ValueError("no such distance")

    monkeypatch.setattr(runtime.learner.algorithm, "score", broken)
    try:
        with pytest.raises(ValueError, match="no such distance"):
            run(runtime, 50)
    finally:
        runtime.close()
