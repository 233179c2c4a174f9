"""IMPALA's loss against the paper written as loops, where its gradient goes, and what acting records."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_batches import ACTIONS, RESETS, env_spec, make_batch, marked, outputs_step_by_step, slow_vtrace

from starling import topology
from starling.algos.impala import IMPALA, explained_variance
from starling.blueprint import draw
from starling.config.algo.impala import IMPALAConfig
from starling.config.load import load
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.store.limiter import Limiter, check
from starling.tree import map_trajectory
from starling.types import EnvSpec

SETTINGS = {"discount": 0.9, "trace_lambda": 0.8, "clip_rho": 1.5, "clip_c": 0.7, "entropy_coef": 0.03}
CORES = ["none", "lstm", "gru"]


def make(core="none", actions="discrete", inputs=(), **settings):
    """The algorithm and its network."""
    torch.manual_seed(3)
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8), inputs=list(inputs))
    algorithm = IMPALA(IMPALAConfig(name="impala", **{**SETTINGS, **settings}), net)
    return algorithm, algorithm.build(env_spec(actions), algorithm.streams())


def recorded(actions="discrete"):
    """Random parameters of a behaviour policy."""

    def extras(shape, random):
        sizes = {"logits": 3} if actions == "discrete" else {"logits_0": 3, "logits_1": 2}
        return {"behaviour": {name: torch.randn(*shape, n, generator=random) for name, n in sizes.items()}}

    return extras


def log_probability(logits, action):
    """log softmax at the action, summed over the choices; logits K of [A_k], action [] or [K]."""
    each = zip(logits, action.reshape(-1), strict=True)
    return sum(torch.log(torch.exp(one[a]) / torch.exp(one).sum()) for one, a in each)


def entropy(logits):
    probabilities = [torch.exp(one) / torch.exp(one).sum() for one in logits]
    return -sum((p * torch.log(p)).sum() for p in probabilities)


def slow_loss(model, batch):
    """1802.01561, section 4.2, summed one step after another; targets and weights are plain numbers."""
    steps, seen = batch.trajectory, outputs_step_by_step(model, batch.trajectory)
    cells = [(t, b) for t, b in product(range(steps.length), range(steps.rows)) if steps.valid[t, b]]
    pi = {(t, b): [leaf[b] for leaf in seen[t]["policy"].params().values()] for t, b in cells}
    mu = {(t, b): [leaf[t, b] for leaf in steps.extras["behaviour"].values()] for t, b in cells}
    log_pi = {(t, b): log_probability(pi[t, b], steps.action[t, b]) for t, b in cells}
    ratio = np.ones((steps.length, steps.rows))
    for t, b in cells:
        ratio[t, b] = torch.exp(log_pi[t, b] - log_probability(mu[t, b], steps.action[t, b])).item()
    v = np.array([outputs["extrinsic"].tolist() for outputs in seen])
    clips = {name: SETTINGS[name] for name in ("clip_rho", "clip_c")}
    vs, advantage = slow_vtrace(steps, ratio, v, SETTINGS["discount"], SETTINGS["trace_lambda"], **clips)
    total = torch.zeros(())
    for t, b in cells:
        total = total - advantage[t, b] * log_pi[t, b]
        total = total + 0.5 * 0.5 * (vs[t, b] - seen[t]["extrinsic"][b]) ** 2
        total = total - SETTINGS["entropy_coef"] * entropy(pi[t, b])
    return total


def gradient(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize(("core", "inputs"), [("none", []), ("lstm", []), ("gru", ["action", "reward"])])
def test_loss_and_gradient_are_those_of_the_paper(core, inputs, actions):
    algorithm, model = make(core, actions, inputs)
    batch = make_batch(model, recorded(actions), actions)
    loss, expected = algorithm.loss(model, None, batch).losses["impala"], slow_loss(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradient(model, loss), gradient(model, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_gradient_comes_only_from_observations_on_which_an_action_was_taken():
    """Neither a bootstrap, nor a target, nor a reset row moves anything."""
    algorithm, model = make()
    batch = make_batch(model, recorded())
    obs = batch.trajectory.obs.requires_grad_()
    algorithm.loss(model, None, batch).losses["impala"].backward()
    moved = obs.grad.abs().sum(-1) > 0  # [T+1, B]
    assert torch.equal(moved[:-1], batch.trajectory.valid)
    assert not moved[-1].any()


@pytest.mark.parametrize("core", CORES)
def test_garbage_on_reset_rows_changes_nothing(core):
    algorithm, model = make(core)
    batch = make_batch(model, recorded())
    steps, reset = batch.trajectory, marked(RESETS)
    logits = steps.extras["behaviour"]["logits"].clone()
    logits[:-1][reset] = torch.tensor([-1e4, 1e4, 0.0])
    dirty = replace(
        steps,
        rewards={"extrinsic": torch.where(reset, 1e6, steps.rewards["extrinsic"])},
        action=torch.where(reset, 0, steps.action),
        extras={"behaviour": {"logits": logits}},
    )
    clean, spoiled = (algorithm.loss(model, None, replace(batch, trajectory=t)) for t in (steps, dirty))
    assert clean.losses["impala"].item() == spoiled.losses["impala"].item()
    assert clean.metrics() == spoiled.metrics()
    for mine, theirs in zip(*(gradient(model, loss.losses["impala"]) for loss in (clean, spoiled)), strict=True):
        assert torch.equal(mine, theirs)


def test_the_loss_is_a_sum_over_steps_and_rows():
    algorithm, model = make()
    batch = make_batch(model, recorded())
    steps = batch.trajectory
    twice = map_trajectory(steps, lambda x: torch.cat([x, x], dim=1), lambda x: torch.cat([x, x]))
    once = algorithm.loss(model, None, batch).losses["impala"]
    double = algorithm.loss(model, None, replace(batch, trajectory=twice)).losses["impala"]
    torch.testing.assert_close(double, 2 * once)


def test_one_pass_over_the_network(monkeypatch):
    algorithm, model = make()
    calls, unroll = [], model.unroll
    monkeypatch.setattr(model, "unroll", lambda obs, *rest: calls.append(len(obs)) or unroll(obs, *rest))
    batch = algorithm.prepare(model, None, make_batch(model, recorded()))
    algorithm.loss(model, None, batch)
    assert calls == [batch.trajectory.length + 1]


def test_explained_variance_is_1_for_the_goals_themselves_and_0_for_a_constant():
    goal, valid = torch.tensor([[1.0, 2.0], [6.0, 1e9]]), torch.tensor([[True, True], [True, False]])
    assert explained_variance(goal + 5.0, goal, valid).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(2, 2), goal, valid).item() == pytest.approx(0.0)
    assert explained_variance(-goal, goal, valid).item() == pytest.approx(-3.0)


@pytest.mark.parametrize("core", CORES)
def test_acting_records_the_policy_that_the_loss_finds_again(core):
    """Where nothing is learnt every ratio is 1: observation, action, state and logits belong together."""
    settings = ["env={id: toy/counting, num: 4}", f"net.core={{kind: {core}, size: 8}}", "net.shared=true"]
    settings += [
        "algo.batch=2",
        "algo.unroll=7",
        "algo.optimizer.args.lr=0",
        "net.inputs=[action, reward]",
        "net.init=default",
    ]
    runtime = topology.build(draw(load("impala-cartpole", settings)))
    for _ in runtime.run():
        if runtime.env_steps > 200:
            break
    metrics = runtime.drain_metrics()
    assert runtime.updates > 5
    assert metrics["loss/rho"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["loss/clipped"] == 0


@pytest.mark.parametrize(("batch", "rows", "max_lag"), list(product([3, 8, 32], [1, 8, 32], [0, 1, 3])))
def test_the_queue_has_room_for_all_that_may_begin(batch, rows, max_lag):
    algorithm, _ = make(batch=batch, max_lag=max_lag)
    specs = algorithm.tables(rows)
    if max_lag == 0 and batch % rows:
        with pytest.raises(UserError, match="whole fragments"):
            check(specs, rows, [rows])
        return
    check(specs, rows, [rows])
    limiter, waiting = Limiter(specs, rows), 0
    for _ in range(20):
        while limiter.may_begin(rows):
            limiter.begin(rows)
            limiter.inserted(rows, rows)
            waiting += rows
        assert waiting <= specs[0].capacity
        assert limiter.may_sample([waiting])
        limiter.sampled()
        waiting -= batch
        limiter.published()


def test_actions_without_number_are_refused():
    algorithm, _ = make()
    env = EnvSpec("swing", spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
    with pytest.raises(UserError, match="impala needs a Discrete or MultiDiscrete action space; swing has Box"):
        algorithm.build(env, algorithm.streams())
