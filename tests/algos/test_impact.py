"""IMPACT's loss compared with the paper written as loops, its target policy, and its circular buffer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.policy_batches import RESETS, env_spec, gradient_at_resets, make_batch, marked
from support.slow_losses import assert_losses_match, build, build_target, float64_net, in_float64, slow_impact

from starling.algos.impact.config import IMPACTConfig
from starling.algos.impact.impact import IMPACT
from starling.config.load import load
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.types import Progress, StreamSpec

SETTINGS = {
    "discount": 0.9,
    "clip_rho": 1.4,
    "clip_c": 0.8,
    "clip": {"start": 0.3, "end": 0.1, "fraction": 1.0},
    "entropy_coef": 0.03,
    "value_coef": 0.7,
    "target_ratio_clip": 1.5,
}
CLIP = 0.2
"""The clip range halfway through the run, where all batches here come from."""


def make(core="none", **settings):
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8))
    algorithm = IMPACT(IMPACTConfig(name="impact", **{**SETTINGS, **settings}), net)
    models = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        models.append(algorithm.build(env_spec(), algorithm.streams()))
    return algorithm, *models


def recorded(shape, random):
    return {"behavior": {"logits": torch.randn(*shape, 3, generator=random)}}


def loss_of(algorithm, model, target, batch):
    return algorithm.loss(model, target, algorithm.prepare(model, target, batch))


def make_float64(core="none", **settings):
    """The algorithm, its network, a target network with other weights, and a batch from the middle of a run."""
    algorithm = IMPACT(IMPACTConfig(name="impact", **{**SETTINGS, **settings}), float64_net(core, shared=False))
    model, target = build(algorithm, env_spec()), build_target(algorithm, env_spec())
    batch = replace(in_float64(make_batch(model, recorded)), progress=Progress(env_steps=50, fraction=0.5))
    return algorithm, model, target, batch


def prepare(algorithm, model, target, batch):
    with torch.no_grad():
        return algorithm.prepare(model, target, batch)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_loss_and_gradient_match_the_paper(core):
    algorithm, model, target, batch = make_float64(core)
    slow = slow_impact(model, target, batch, algorithm.config, [StreamSpec(discount=0.9)], CLIP)
    ready = prepare(algorithm, model, target, batch)
    loss = assert_losses_match(algorithm, model, target, ready, {"impact": slow})
    assert 0 < loss.metrics()["clipped"] < 1


def test_trace_lambda_affects_value_targets_and_advantages():
    algorithm, model, target, batch = make_float64(trace_lambda=0.6)
    slow = slow_impact(model, target, batch, algorithm.config, [StreamSpec(discount=0.9, lambda_=0.6)], CLIP)
    assert_losses_match(algorithm, model, target, prepare(algorithm, model, target, batch), {"impact": slow})


def test_ratio_is_bounded_when_the_actor_is_far_from_the_target_policy():
    """For actions certain for the actor and unlikely for the target, the ratio's denominator is bounded from below."""
    algorithm, model, target = make()
    batch = make_batch(model, recorded)
    action = batch.trajectory.action
    certain = torch.full((9, 4, 3), -30.0)
    certain[:-1].scatter_(-1, action[..., None], 30.0)
    batch = replace(batch, trajectory=replace(batch.trajectory, extras={"behavior": {"logits": certain}}))
    prepared = algorithm.prepare(model, target, batch)
    prepared.prepared.target.fill_(-60.0)
    assert loss_of(algorithm, model, target, batch).losses["impact"].isfinite()
    assert algorithm.loss(model, target, prepared).losses["impact"].abs() < 10


def test_values_at_resets_are_ignored():
    algorithm, model, target = make()
    batch = make_batch(model, recorded)
    steps, reset = batch.trajectory, marked(RESETS)
    logits = steps.extras["behavior"]["logits"].clone()
    logits[:-1][reset] = torch.tensor([-1e4, 1e4, 0.0])
    with_garbage = replace(steps, action=torch.where(reset, 0, steps.action), extras={"behavior": {"logits": logits}})
    clean, spoiled = (loss_of(algorithm, model, target, replace(batch, trajectory=t)) for t in (steps, with_garbage))
    assert clean.losses["impact"].item() == spoiled.losses["impact"].item()
    assert clean.metrics() == spoiled.metrics()


@pytest.mark.parametrize("episodic", [True, False])
def test_only_non_episodic_streams_train_the_value_of_final_observations(episodic):
    algorithm, _, target = make()
    model = algorithm.build(env_spec(), (replace(algorithm.streams()[0], episodic=episodic),))
    batch = algorithm.prepare(model, target, make_batch(model, recorded))
    gradient = gradient_at_resets(lambda batch: algorithm.loss(model, target, batch).losses["impact"], batch)
    assert (gradient == 0).all() if episodic else (gradient != 0).any(-1).all()


@pytest.mark.parametrize(("buffer", "uses", "num_envs"), [(1, 1, 4), (4, 2, 4), (2, 3, 16), (3, 4, 5)])
def test_every_fragment_is_sampled_max_times_and_none_is_lost(buffer, uses, num_envs):
    settings = [
        f"algo.buffer={buffer}",
        f"algo.max_times_sampled={uses}",
        "algo.batch=4",
        "algo.unroll=5",
        f"env.num={num_envs}",
    ]
    runtime = build_runtime(RunPlan.from_config(load("impact-cartpole", settings)))
    drawn, sample = [], runtime.store.draw_candidates

    def spy():
        candidates = sample()
        if candidates is not None:
            keys = candidates.parts[0].keys
            drawn.extend(zip(keys.slot.tolist(), keys.generation.tolist(), strict=True))
        return candidates

    runtime.store.draw_candidates = spy
    for _ in runtime.run():
        if runtime.updates >= 60:
            break
    metrics = runtime.drain_metrics()
    counts = np.unique(np.array(drawn), axis=0, return_counts=True)[1]
    assert metrics["store/unrolls/full"] == 0
    assert counts.max() == uses
    assert (counts == uses).sum() >= len(counts) - 4 * (buffer + 1)  # the others are still in the buffer
    assert runtime.updates == pytest.approx(runtime.env_steps * uses / 20, rel=0.35)


def test_target_network_is_a_copy_of_earlier_weights():
    runtime = build_runtime(
        RunPlan.from_config(load("impact-cartpole", ["algo.target_every=7", "algo.unroll=5", "env.num=8"]))
    )
    learner, update_priorities, weights = runtime.learner, runtime.store.update_priorities, {}

    def spy(keys, priorities):
        weights[learner.updates] = [parameter.detach().clone() for parameter in learner.model.parameters()]
        update_priorities(keys, priorities)

    runtime.store.update_priorities = spy
    for _ in runtime.run():
        if learner.updates >= 24:
            break
    earlier = weights[learner.updates // 7 * 7]
    assert all(torch.equal(one, other) for one, other in zip(learner._target.parameters(), earlier, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(learner.model.parameters(), earlier, strict=True))
