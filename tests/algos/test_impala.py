"""IMPALA's loss compared with the paper written as loops, its gradients, and what acting records."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from gymnasium import spaces
from support.policy_batches import ACTIONS, RESETS, ROWS, env_spec, make_batch, marked
from support.slow_losses import assert_losses_match, build, float64_net, in_float64, slow_impala

from starling.algos.impala.config import IMPALAConfig
from starling.config.load import load
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.launch.plan import RunPlan, make_algorithm
from starling.launch.runtime import build_runtime
from starling.ops.policy import explained_variance
from starling.replay.limiter import Limiter, check
from starling.tree import map_trajectory
from starling.types import EnvSpec, StreamSpec

SETTINGS = {"discount": 0.9, "clip_rho": 1.5, "clip_c": 0.7, "entropy_coef": 0.03, "value_coef": 0.7}
CORES = ["none", "lstm", "gru"]
REPLAYED = [1, 2]
"""Replayed rows of a mixed batch; an episode ends in each of them."""


def make(core="none", actions="discrete", inputs=(), **settings):
    """The algorithm and its network."""
    torch.manual_seed(3)
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8), inputs=list(inputs))
    algorithm = make_algorithm(IMPALAConfig(name="impala", **{**SETTINGS, **settings}), net)
    return algorithm, algorithm.build(env_spec(actions), algorithm.streams())


def make_float64(core="none", actions="discrete", net=None, **settings):
    """The algorithm, its network, and a batch of new and replayed rows."""
    algorithm = make_algorithm(
        IMPALAConfig(name="impala", **{**SETTINGS, **settings}), float64_net(core, **(net or {}))
    )
    model = build(algorithm, env_spec(actions))
    source = torch.ones(ROWS, dtype=torch.int64)  # the queue is the second source
    source[REPLAYED] = 0
    batch = replace(make_batch(model, recorded(actions), actions), source=source, weight=torch.linspace(0.3, 1.0, ROWS))
    return algorithm, model, in_float64(batch)


def recorded(actions="discrete"):
    """A function for random parameters of a behavior policy and random recorded values."""

    def extras(shape, random):
        sizes = {"logits": 3} if actions == "discrete" else {"logits_0": 3, "logits_1": 2}
        logits = {name: torch.randn(*shape, n, generator=random) for name, n in sizes.items()}
        return {"behavior": logits, "values": {"extrinsic": torch.randn(*shape, generator=random)}}

    return extras


def gradient(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def assert_matches_the_papers(algorithm, model, batch):
    slow = slow_impala(model, batch, algorithm.config, [StreamSpec(discount=0.9)], REPLAYED)
    assert_losses_match(algorithm, model, None, batch, {"impala": slow})


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize(("core", "inputs"), [("none", []), ("lstm", []), ("gru", ["action", "reward"])])
def test_loss_and_gradient_match_the_paper(core, inputs, actions):
    assert_matches_the_papers(*make_float64(core, actions, {"inputs": inputs}))


CLEAR, LASER = {"policy_cost": 0.2, "value_cost": 0.03}, {"threshold": 0.1}


@pytest.mark.parametrize("replay", ["uniform", "prioritized"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clear": CLEAR},
        {"laser": LASER},
        {"laser": {**LASER, "reference": "behavior"}},
        {"clear": CLEAR, "laser": LASER},
    ],
    ids=str,
)
def test_loss_and_gradient_with_replay_match_clear_laser_and_importance_weights(settings, replay):
    sources = [{"kind": replay, "share": 0.5}, {"kind": "queue", "share": 0.5}]
    assert_matches_the_papers(*make_float64(**settings, sources=sources))


def test_trace_lambda_affects_value_targets_and_advantages():
    algorithm, model, batch = make_float64(trace_lambda=0.6)
    slow = slow_impala(model, batch, algorithm.config, [StreamSpec(discount=0.9, lambda_=0.6)], REPLAYED)
    assert_losses_match(algorithm, model, None, batch, {"impala": slow})


def test_gradient_comes_only_from_observations_with_an_action():
    """Bootstrap values, targets, and resets have no gradient."""
    algorithm, model = make()
    batch = make_batch(model, recorded())
    obs = batch.trajectory.obs.requires_grad_()
    algorithm.loss(model, None, batch).losses["impala"].backward()
    has_gradient = obs.grad.abs().sum(-1) > 0  # [T+1, B]
    assert torch.equal(has_gradient[:-1], batch.trajectory.valid)
    assert not has_gradient[-1].any()


@pytest.mark.parametrize("core", CORES)
def test_values_at_resets_are_ignored(core):
    algorithm, model = make(core)
    batch = make_batch(model, recorded())
    steps, reset = batch.trajectory, marked(RESETS)
    logits = steps.extras["behavior"]["logits"].clone()
    logits[:-1][reset] = torch.tensor([-1e4, 1e4, 0.0])
    with_garbage = replace(
        steps,
        rewards={"extrinsic": torch.where(reset, 1e6, steps.rewards["extrinsic"])},
        action=torch.where(reset, 0, steps.action),
        extras={"behavior": {"logits": logits}},
    )
    clean, spoiled = (algorithm.loss(model, None, replace(batch, trajectory=t)) for t in (steps, with_garbage))
    assert clean.losses["impala"].item() == spoiled.losses["impala"].item()
    assert clean.metrics() == spoiled.metrics()
    for mine, theirs in zip(*(gradient(model, loss.losses["impala"]) for loss in (clean, spoiled)), strict=True):
        assert torch.equal(mine, theirs)


def test_loss_is_a_sum_over_steps_and_rows():
    algorithm, model = make()
    batch = make_batch(model, recorded())
    steps = batch.trajectory
    twice = map_trajectory(steps, lambda x: torch.cat([x, x], dim=1), lambda x: torch.cat([x, x]))
    once = algorithm.loss(model, None, batch).losses["impala"]
    double = algorithm.loss(model, None, replace(batch, trajectory=twice)).losses["impala"]
    torch.testing.assert_close(double, 2 * once)


def test_prepare_and_loss_unroll_the_network_once(monkeypatch):
    algorithm, model = make()
    calls, unroll = [], model.unroll
    monkeypatch.setattr(model, "unroll", lambda obs, *rest: calls.append(len(obs)) or unroll(obs, *rest))
    batch = algorithm.prepare(model, None, make_batch(model, recorded()))
    algorithm.loss(model, None, batch)
    assert calls == [batch.trajectory.length + 1]


def test_explained_variance_is_1_for_the_targets_themselves_and_0_for_a_constant():
    target, valid = torch.tensor([[1.0, 2.0], [6.0, 1e9]]), torch.tensor([[True, True], [True, False]])
    assert explained_variance(target + 5.0, target, valid).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(2, 2), target, valid).item() == pytest.approx(0.0)
    assert explained_variance(-target, target, valid).item() == pytest.approx(-3.0)


@pytest.mark.parametrize("core", CORES)
def test_recorded_and_recomputed_policies_agree(core):
    """With a learning rate of 0 every ratio is 1: observation, action, state, and logits are aligned."""
    settings = ["env={id: toy/counting, num: 4}", f"net.core={{kind: {core}, size: 8}}", "net.shared=true"]
    settings += [
        "algo.batch=2",
        "algo.unroll=7",
        "algo.optimizer.args.lr=0",
        "net.inputs=[action, reward]",
        "net.init=default",
    ]
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", settings)))
    for _ in runtime.run():
        if runtime.env_steps > 200:
            break
    metrics = runtime.drain_metrics()
    assert runtime.updates > 5
    assert metrics["loss/rho"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["loss/clipped"] == 0


@pytest.mark.parametrize(("batch", "num_envs", "max_lag"), list(product([3, 8, 32], [1, 8, 32], [0, 1, 3])))
def test_queue_has_room_for_all_fragments_that_may_begin(batch, num_envs, max_lag):
    algorithm, _ = make(batch=batch, max_lag=max_lag)
    specs = algorithm.tables(num_envs)
    if max_lag == 0 and batch % num_envs:
        with pytest.raises(UserError, match="whole fragments"):
            check(specs, num_envs, [num_envs])
        return
    check(specs, num_envs, [num_envs])
    limiter, waiting = Limiter(specs, num_envs), 0
    for _ in range(20):
        while limiter.may_begin(num_envs):
            limiter.begin(num_envs)
            limiter.on_inserted(num_envs, num_envs)
            waiting += num_envs
        assert waiting <= specs[0].capacity
        assert limiter.may_sample([waiting])
        limiter.on_sampled()
        waiting -= batch
        limiter.on_published()


def test_continuous_actions_are_rejected():
    algorithm, _ = make()
    env = EnvSpec("swing", spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
    with pytest.raises(UserError, match="impala needs a Discrete or MultiDiscrete action space; swing has Box"):
        algorithm.build(env, algorithm.streams())
