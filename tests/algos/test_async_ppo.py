"""PPO with asynchronous actors: V-trace corrects the advantages, and without lag nothing changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.inline_runs import run
from support.policy_batches import (
    ACTIONS,
    LENGTH,
    env_spec,
    gradient_at_resets,
    make_batch,
    outputs_step_by_step,
    slow_vtrace,
)

from starling.algos.actor_critic import choose
from starling.algos.base import ActOutput
from starling.algos.ppo.config import PPOConfig
from starling.algos.ppo.ppo import LOG_PROB, PPO
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.ops.returns import gae

DISCOUNT, LAMBDA, CLIP = 0.9, 0.8, 0.2
CASES = [(core, actions) for core in ("none", "lstm") for actions in ACTIONS]


def make(core="none", actions="discrete", **settings):
    """The algorithm and its network."""
    torch.manual_seed(3)
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8))
    plain = {"discount": DISCOUNT, "gae_lambda": LAMBDA, "clip": CLIP, "normalize_advantages": False, "minibatches": 1}
    algorithm = PPO(PPOConfig(name="ppo", **{**plain, **settings}), net)
    return algorithm, algorithm.build(env_spec(actions), algorithm.streams())


def stale(shape, random):
    """Log-probabilities of some other policy."""
    return {"log_prob": -3.0 * torch.rand(*shape, generator=random)}


def current_log_prob(model, steps):
    """log pi(a) [T, B] of the current network."""
    seen = outputs_step_by_step(model, steps)[:-1]
    return torch.stack([outputs["policy"].log_prob(steps.action[t]) for t, outputs in enumerate(seen)]).detach()


def prepare(algorithm, model, batch):
    with torch.no_grad():
        return algorithm.prepare(model, None, batch).prepared


def _with_own_step_unweighted(steps, ratio, v, t):
    """vs - v at step t [B] with a ratio of 1 for its own action, which the surrogate weights itself."""
    vs, _ = slow_vtrace(steps, np.where(np.arange(LENGTH)[:, None] == t, 1.0, ratio), v, DISCOUNT, LAMBDA)
    return vs[t] - v[t]


@pytest.mark.parametrize(("core", "actions"), CASES)
def test_with_lag_values_and_advantages_are_those_of_vtrace(core, actions):
    algorithm, model = make(core, actions, max_lag=2)
    batch = make_batch(model, stale, actions)
    steps = batch.trajectory
    prepared = prepare(algorithm, model, batch)
    ratio = (current_log_prob(model, steps) - steps.extras["log_prob"][:LENGTH]).exp().double().numpy()
    v = np.array([outputs["extrinsic"].tolist() for outputs in outputs_step_by_step(model, steps)])
    vs, _ = slow_vtrace(steps, ratio, v, DISCOUNT, LAMBDA)
    valid = steps.valid.numpy()
    np.testing.assert_allclose(prepared.value_target["extrinsic"].numpy()[valid], vs[valid], atol=1e-5)
    advantage = np.stack([_with_own_step_unweighted(steps, ratio, v, t) for t in range(LENGTH)])
    np.testing.assert_allclose(prepared.advantage.numpy()[valid], advantage[valid], atol=1e-5)
    assert ratio[valid].max() > 1.1 > 0.9 > ratio[valid].min()  # some ratios are clipped, some are not


@pytest.mark.parametrize(("core", "actions"), CASES)
def test_with_lag_but_the_same_policy_advantages_are_gae(core, actions):
    (asynchronous, model), (synchronous, _) = make(core, actions, max_lag=1), make(core, actions)
    batch = make_batch(model, stale, actions)
    current = current_log_prob(model, batch.trajectory)
    extras = {"log_prob": torch.cat([current, current[:1]])}
    batch = replace(batch, trajectory=replace(batch.trajectory, extras=extras))
    with_lag, without_lag = prepare(asynchronous, model, batch), prepare(synchronous, model, batch)
    torch.testing.assert_close(with_lag.advantage, without_lag.advantage, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(with_lag.value_target, without_lag.value_target, rtol=1e-5, atol=2e-6)


def test_without_lag_advantages_are_bitwise_gae_and_ignore_what_was_recorded():
    algorithm, model = make()
    batch = make_batch(model, stale)
    steps = batch.trajectory
    prepared = prepare(algorithm, model, batch)
    with torch.no_grad():
        v = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)[0]["extrinsic"]
    discount = torch.where(steps.terminated, 0.0, DISCOUNT)
    expected = gae(steps.rewards["extrinsic"], discount, v[:-1], v[1:], LAMBDA, steps.valid)
    assert torch.equal(prepared.advantage, expected)
    assert torch.equal(prepared.value_target["extrinsic"], expected + v[:-1])


@pytest.mark.parametrize("max_lag", [0, 2])
def test_surrogate_ratio_is_relative_to_the_policy_that_acted(max_lag):
    """Without lag that is the network at the arrival of the batch, whatever was recorded."""
    algorithm, model = make(max_lag=max_lag, value_coef=0.0, entropy_coef=0.0)
    batch = make_batch(model, stale)
    steps = batch.trajectory
    behavior = steps.extras["log_prob"][:LENGTH] if max_lag else current_log_prob(model, steps)
    with torch.no_grad():
        batch = algorithm.prepare(model, None, batch)
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        loss = algorithm.loss(model, None, batch).losses["ppo"].item()
    advantage, surrogates = batch.prepared.advantage, []
    ratio = (current_log_prob(model, steps) - behavior).exp()
    for t, b in steps.valid.nonzero().tolist():
        r, a = ratio[t, b].item(), advantage[t, b].item()
        surrogates.append(min(r * a, min(max(r, 1 - CLIP), 1 + CLIP) * a))
    assert loss == pytest.approx(-np.mean(surrogates), rel=1e-4)
    assert ratio[steps.valid].max() > 1 + CLIP > 1 - CLIP > ratio[steps.valid].min()


class Recording(PPO):
    """PPO that also records log-probabilities and compares them with its own."""

    compared = 0

    def act(self, model, inputs):
        policy, action, state = choose(model, inputs)
        return ActOutput(action, {LOG_PROB: policy.log_prob(action)}, state)

    def prepare(self, model, target_net, batch):
        prepared, steps = super().prepare(model, target_net, batch), batch.trajectory
        recorded = steps.extras[LOG_PROB][: steps.length]
        torch.testing.assert_close(prepared.prepared.log_prob[steps.valid], recorded[steps.valid])
        Recording.compared += 1
        return prepared


@pytest.mark.parametrize(
    "settings", [["env.id=Pendulum-v1", "algo.normalize_observations=true"], ["net.core.kind=lstm"]]
)
def test_without_lag_recorded_and_recomputed_log_probs_agree(monkeypatch, settings):
    monkeypatch.setattr("starling.algos.ppo.ppo.PPO", Recording)
    monkeypatch.setattr(Recording, "compared", 0)
    short = ["env.num=4", "algo.rollout=16", "algo.epochs=2", "algo.minibatches=2"]
    run("ppo-cartpole", 5 * 4 * 16, *short, *settings)
    assert Recording.compared >= 3


@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize("episodic", [True, False])
def test_only_non_episodic_streams_train_the_value_of_final_observations(max_lag, episodic):
    algorithm, _ = make(max_lag=max_lag)
    model = algorithm.build(env_spec(), (replace(algorithm.streams()[0], episodic=episodic),))
    with torch.no_grad():
        batch = algorithm.prepare(model, None, make_batch(model, stale))
    gradient = gradient_at_resets(lambda batch: algorithm.loss(model, None, batch).losses["ppo"], batch)
    assert (gradient == 0).all() if episodic else (gradient != 0).any(-1).all()


def test_max_lag_sets_lag_and_capacity_of_the_queue():
    (table,) = make(max_lag=3)[0].tables(num_envs=8)
    assert (table.max_lag, table.batch, table.capacity) == (3, 8, 40)
    assert make()[0].tables(num_envs=8)[0].max_lag == 0
