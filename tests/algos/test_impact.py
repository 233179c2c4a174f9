"""IMPACT's loss against the paper written as loops, its target policy, and its circular buffer."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from policy_batches import RESETS, env_spec, gradient_at_resets, make_batch, marked, outputs_step_by_step, slow_vtrace

from starling import topology
from starling.algos.impact import IMPACT
from starling.blueprint import draw
from starling.config.algo.impact import IMPACTConfig
from starling.config.load import load
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig

SETTINGS = {"discount": 0.9, "trace_lambda": 0.8, "clip": 0.2, "entropy_coef": 0.03, "largest_ratio": 2.0}


def make(core="none", **settings):
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8))
    algorithm = IMPACT(IMPACTConfig(name="impact", **{**SETTINGS, **settings}), net)
    models = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        models.append(algorithm.build(env_spec(), algorithm.streams()))
    return algorithm, *models


def recorded(shape, random):
    return {"behaviour": {"logits": torch.randn(*shape, 3, generator=random)}}


def loss_of(algorithm, model, target, batch):
    return algorithm.loss(model, target, algorithm.prepare(model, target, batch))


def slow_loss(model, target, batch):
    """1912.00167, algorithm 1 and section 3.1, one step after another; what the target says is a plain number."""
    steps = batch.trajectory
    seen, slow = outputs_step_by_step(model, steps), outputs_step_by_step(target, steps)
    cells = [(t, b) for t, b in product(range(steps.length), range(steps.rows)) if steps.valid[t, b]]

    def probability(logits, t, b):
        return torch.softmax(logits, -1)[steps.action[t, b]]

    worker = {(t, b): probability(steps.extras["behaviour"]["logits"][t, b], t, b).item() for t, b in cells}
    aim = {(t, b): probability(slow[t]["policy"].logits[b], t, b).item() for t, b in cells}
    ratio = np.ones((steps.length, steps.rows))
    for cell in cells:
        ratio[cell] = aim[cell] / worker[cell]
    v = np.array([outputs["extrinsic"].tolist() for outputs in seen])
    vs, advantage = slow_vtrace(steps, ratio, v, SETTINGS["discount"], SETTINGS["trace_lambda"])
    total = torch.zeros(())
    for t, b in cells:
        logits = seen[t]["policy"].logits[b]
        r = probability(logits, t, b) / max(aim[t, b], worker[t, b] / SETTINGS["largest_ratio"])
        surrogate = torch.minimum(r * advantage[t, b], r.clamp(0.8, 1.2) * advantage[t, b])
        p = torch.softmax(logits, -1)
        total = total - surrogate + 0.03 * (p * p.log()).sum()
        total = total + 0.5 * 0.5 * (vs[t, b] - seen[t]["extrinsic"][b]) ** 2
    return total / len(cells)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_loss_and_gradient_are_those_of_the_paper(core):
    algorithm, model, target = make(core)
    batch = make_batch(model, recorded)
    loss, expected = loss_of(algorithm, model, target, batch).losses["impact"], slow_loss(model, target, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(*(torch.autograd.grad(x, list(model.parameters())) for x in (loss, expected)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_worker_far_from_the_target_does_not_make_the_ratio_explode():
    """Where the target hardly takes an action that the worker took for sure, the ratio is against half the worker."""
    algorithm, model, target = make()
    batch = make_batch(model, recorded)
    action = batch.trajectory.action
    sure = torch.full((9, 4, 3), -30.0)
    sure[:-1].scatter_(-1, action[..., None], 30.0)
    batch = replace(batch, trajectory=replace(batch.trajectory, extras={"behaviour": {"logits": sure}}))
    prepared = algorithm.prepare(model, target, batch)
    prepared.prepared["target"].fill_(-60.0)
    assert loss_of(algorithm, model, target, batch).losses["impact"].isfinite()
    assert algorithm.loss(model, target, prepared).losses["impact"].abs() < 10


def test_garbage_on_reset_rows_changes_nothing():
    algorithm, model, target = make()
    batch = make_batch(model, recorded)
    steps, reset = batch.trajectory, marked(RESETS)
    logits = steps.extras["behaviour"]["logits"].clone()
    logits[:-1][reset] = torch.tensor([-1e4, 1e4, 0.0])
    dirty = replace(steps, action=torch.where(reset, 0, steps.action), extras={"behaviour": {"logits": logits}})
    clean, spoiled = (loss_of(algorithm, model, target, replace(batch, trajectory=t)) for t in (steps, dirty))
    assert clean.losses["impact"].item() == spoiled.losses["impact"].item()
    assert clean.metrics() == spoiled.metrics()


@pytest.mark.parametrize("episodic", [True, False])
def test_final_observations_are_learnt_from_where_returns_go_on_behind_them(episodic):
    algorithm, _, target = make()
    model = algorithm.build(env_spec(), (replace(algorithm.streams()[0], episodic=episodic),))
    batch = algorithm.prepare(model, target, make_batch(model, recorded))
    pull = gradient_at_resets(lambda batch: algorithm.loss(model, target, batch).losses["impact"], batch)
    assert (pull == 0).all() if episodic else (pull != 0).any(-1).all()


@pytest.mark.parametrize(("buffer", "uses", "rows"), [(1, 1, 4), (4, 2, 4), (2, 3, 16), (3, 4, 5)])
def test_every_unroll_is_learnt_from_as_often_as_it_should_and_none_is_lost(buffer, uses, rows):
    settings = [f"algo.buffer={buffer}", f"algo.uses={uses}", "algo.batch=4", "algo.unroll=5", f"env.num={rows}"]
    runtime = topology.build(draw(load("impact-cartpole", settings)))
    drawn, sample = [], runtime.store.draft

    def spy():
        draft = sample()
        if draft is not None:
            keys = draft.parts[0].keys
            drawn.extend(zip(keys.slot.tolist(), keys.generation.tolist(), strict=True))
        return draft

    runtime.store.draft = spy
    for _ in runtime.run():
        if runtime.updates >= 60:
            break
    metrics = runtime.drain_metrics()
    counts = np.unique(np.array(drawn), axis=0, return_counts=True)[1]
    assert metrics["store/unrolls/full"] == 0
    assert counts.max() == uses
    assert (counts == uses).sum() >= len(counts) - 4 * (buffer + 1)  # the others are still in the buffer
    assert runtime.updates == pytest.approx(runtime.env_steps * uses / 20, rel=0.35)


def test_the_target_is_the_network_of_some_updates_ago():
    runtime = topology.build(draw(load("impact-cartpole", ["algo.target_every=7", "algo.unroll=5", "env.num=8"])))
    learner, learnt, weights = runtime.learner, runtime.store.learnt, {}

    def spy(keys, priorities):
        weights[learner.version] = [parameter.detach().clone() for parameter in learner.model.parameters()]
        learnt(keys, priorities)

    runtime.store.learnt = spy
    for _ in runtime.run():
        if learner.version >= 24:
            break
    then = weights[learner.version // 7 * 7]
    assert all(torch.equal(one, other) for one, other in zip(learner._target.parameters(), then, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(learner.model.parameters(), then, strict=True))
