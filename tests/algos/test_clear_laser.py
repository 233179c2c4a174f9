"""CLEAR and LASER on cases computed by hand; without them IMPALA is unchanged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.policy_batches import RESETS, env_spec, make_batch, marked

from starling.algos.impala.config import IMPALAConfig
from starling.config.load import load
from starling.config.parts import NetConfig, TorsoConfig
from starling.errors import UserError
from starling.launch.plan import RunPlan, make_algorithm
from starling.launch.runtime import build_runtime
from starling.types import Batch, EnvSpec, Progress, Trajectory

SOURCES = [{"kind": "queue", "share": 0.5}, {"kind": "uniform", "share": 0.5}]
NEW_AND_OLD = torch.tensor([0, 1])
MU = [0.5, 0.5]
PI = [0.8, 0.2]
VALUE, OLD_VALUE = 2.0, 5.0


def bandit(settings, length, mu=MU, terminated=True):
    """IMPALA with policy PI and value 2 everywhere, and a new and a replayed row of `length` steps of action 0."""
    torch.manual_seed(0)
    env = EnvSpec("choice", spaces.Box(0, 1, (1,)), spaces.Discrete(2))
    net = NetConfig(torso=TorsoConfig(hidden=[]), shared=False)
    base = {"entropy_coef": 0.0, "value_coef": 0.0, "discount": 0.5, "sources": SOURCES}
    algorithm = make_algorithm(IMPALAConfig(name="impala", **{**base, **settings}), net)
    model = algorithm.build(env, algorithm.streams())
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        model.heads["policy"].logits.bias.copy_(torch.tensor(PI).log())
        list(model.heads["extrinsic"].parameters())[-1].fill_(VALUE)
    true, false = torch.ones(length, 2, dtype=torch.bool), torch.zeros(length, 2, dtype=torch.bool)
    end = false.clone()
    end[-1] = terminated
    mu = torch.tensor(mu).log().expand(length + 1, 2, 2) if np.ndim(mu) == 1 else torch.tensor(mu).log()[:, None]
    steps = Trajectory(
        obs=torch.ones(length + 1, 2, 1),
        first=torch.cat([true[:1], false]),
        action=torch.zeros(length, 2, dtype=torch.int64),
        rewards={"extrinsic": torch.ones(length, 2)},
        terminated=end,
        truncated=false,
        valid=true,
        extras={
            "behavior": {"logits": mu.expand(length + 1, 2, 2)},
            "values": {"extrinsic": torch.full((length + 1, 2), OLD_VALUE)},
        },
        carry={},
        policy_version=torch.zeros(2, dtype=torch.int64),
    )
    batch = Batch(steps, torch.ones(2), NEW_AND_OLD, Progress(), torch.Generator())
    return algorithm, model, batch


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_clear_clones_policy_and_value_only_on_replayed_rows():
    """One step; KL(mu || pi) = 0.5 log(0.5/0.8) + 0.5 log(0.5/0.2) = 0.2231, (2 - 5)^2 = 9."""
    bare = bandit({}, 1)
    with_clear = bandit({"clear": {"policy_cost": 0.01, "value_cost": 0.005}}, 1)
    losses = [
        algorithm.loss(model, None, batch).losses["impala"].item() for algorithm, model, batch in (bare, with_clear)
    ]
    assert losses[1] - losses[0] == pytest.approx(0.01 * 0.22314 + 0.005 * 9, abs=1e-6)


def test_clear_gradients_point_to_the_recorded_policy_and_value():
    algorithm, model, batch = bandit({"clear": {"policy_cost": 1.0, "value_cost": 1.0}}, 1)
    bare = bandit({}, 1)
    gradients = []
    for agent, net, data in ((algorithm, model, batch), bare):
        agent.loss(net, None, data).losses["impala"].backward()
        gradients.append((net.heads["policy"].logits.bias.grad, list(net.heads["extrinsic"].parameters())[-1].grad))
    policy, value = (one - other for one, other in zip(*gradients, strict=True))
    # Gradient of KL(mu || pi) with respect to the logits.
    torch.testing.assert_close(policy, torch.tensor(PI) - torch.tensor(MU))
    torch.testing.assert_close(value, torch.tensor([2 * (VALUE - OLD_VALUE)]))


@pytest.mark.parametrize(
    ("reference", "divergence"),
    [
        # min(mu, pi) = (0.5, 0.2), normalized (5/7, 2/7)
        ("implied", kl(PI, [5 / 7, 2 / 7])),
        ("behavior", kl(PI, MU)),
    ],
)
def test_laser_threshold_applies_to_the_divergence_of_the_state(reference, divergence):
    """The paper's divergence is the smaller one: 0.0197 instead of 0.1927."""
    kept = []
    for threshold in (divergence * 0.999, divergence * 1.001):
        algorithm, model, batch = bandit({"laser": {"threshold": threshold, "reference": reference}}, 1)
        kept.append(algorithm.loss(model, None, batch).metrics()["relevant"].item())
    assert kept == [0.0, 1.0]


def test_laser_cuts_the_trace_at_an_irrelevant_state():
    """Three steps of reward 1, value 2, discount 0.5; mu = pi except at the second state.

    Value targets: 1 for the last (its reward); 2 for the second (its own value); the first bootstraps there:
    1 + 0.5 x 2 = 2.
    """
    algorithm, model, batch = bandit(
        {"laser": {"threshold": 0.3}, "value_coef": 1.0}, 3, [PI, [1e-4, 1 - 1e-4], PI, PI]
    )
    loss = algorithm.loss(model, None, batch)
    # Policy gradient advantages: 1 + 0.5 x 2 - 2 = 0, none, 1 - 2 = -1; value errors: 0, 0, and 1.
    policy = -math.log(PI[0]) * -1.0
    assert loss.losses["impala"].item() == pytest.approx(2 * (policy + 0.5), abs=1e-5)
    loss.losses["impala"].backward()
    uncut = bandit({"value_coef": 1.0}, 3, [PI, [1e-4, 1 - 1e-4], PI, PI])
    assert uncut[0].loss(*uncut[1:2], None, uncut[2]).losses["impala"].item() != pytest.approx(
        loss.losses["impala"].item()
    )


def test_irrelevant_states_have_no_gradient():
    """Neither policy, value, entropy, nor cloning: observations have a gradient only where the state is kept."""
    settings = {"laser": {"threshold": 0.3}, "clear": {}, "value_coef": 0.5, "entropy_coef": 0.1}
    algorithm, model, batch = bandit(settings, 3, [PI, [1e-4, 1 - 1e-4], MU, MU])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    obs = batch.trajectory.obs.requires_grad_()
    loss = algorithm.loss(model, None, batch)
    loss.losses["impala"].backward()
    has_gradient = obs.grad.abs().sum(-1) > 0  # [T+1, B]
    assert has_gradient.tolist() == [[True, True], [False, False], [True, True], [False, False]]


def test_with_laser_the_entropy_bonus_applies_only_to_new_rows():
    losses = []
    for coefficient in (0.0, 1.0):
        algorithm, model, batch = bandit({"laser": {"threshold": 9.0}, "entropy_coef": coefficient}, 1)
        losses.append(algorithm.loss(model, None, batch).losses["impala"].item())
    assert losses[0] - losses[1] == pytest.approx(-sum(p * math.log(p) for p in PI), abs=1e-6)


def test_implied_policy_with_several_action_components_is_rejected():
    algorithm = make_algorithm(IMPALAConfig(name="impala", laser={}), NetConfig())
    with pytest.raises(UserError, match=r"algo\.laser\.reference=behavior"):
        algorithm.build(env_spec("multi"), algorithm.streams())
    other = make_algorithm(IMPALAConfig(name="impala", laser={"reference": "behavior"}), NetConfig())
    model = other.build(env_spec("multi"), other.streams())
    extras = {"behavior": {"logits_0": torch.zeros(9, 4, 3), "logits_1": torch.zeros(9, 4, 2)}}
    assert other.loss(model, None, make_batch(model, lambda *_: extras, "multi")).losses["impala"].isfinite()


def test_values_at_resets_are_not_cloned():
    settings = {"sources": SOURCES, "clear": {"policy_cost": 1.0, "value_cost": 1.0}}
    algorithm = make_algorithm(IMPALAConfig(name="impala", **settings), NetConfig())
    model = algorithm.build(env_spec(), algorithm.streams())

    def recorded(shape, random):
        logits = torch.randn(*shape, 3, generator=random)
        return {"behavior": {"logits": logits}, "values": {"extrinsic": torch.randn(*shape, generator=random)}}

    batch = replace(make_batch(model, recorded), source=torch.ones(4, dtype=torch.int64))
    steps, reset = batch.trajectory, marked(RESETS)
    values = steps.extras["values"]["extrinsic"].clone()
    values[:-1][reset] = 1e9
    with_garbage = replace(steps, extras={**steps.extras, "values": {"extrinsic": values}})
    clean, spoiled = (
        algorithm.loss(model, None, replace(batch, trajectory=t)).losses["impala"] for t in (steps, with_garbage)
    )
    assert clean.item() == spoiled.item()


def parameters_after(settings, updates=12):
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", ["algo.unroll=5", "env.num=8", *settings])))
    for _ in runtime.run():
        if runtime.updates >= updates:
            break
    runtime.close()
    return torch.cat([parameter.detach().flatten() for parameter in runtime.learner.model.parameters()])


MIXED = "algo.sources=[{kind: queue, share: 0.5}, {kind: uniform, share: 0.5}]"


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (["algo.sources=[{kind: queue, share: 1}]"], None),
        (["algo.laser.threshold=1e12"], None),
        (["algo.laser={threshold: 1e12, reference: behavior}"], None),
        ([MIXED, "algo.clear={policy_cost: 0, value_cost: 0}"], [MIXED]),
    ],
)
def test_settings_without_effect_leave_training_bitwise_unchanged(off, on):
    plain, with_setting = parameters_after(on or []), parameters_after(off)
    assert torch.equal(plain, with_setting)


@pytest.mark.parametrize("switch", ["algo.clear={}", "algo.laser={threshold: 0.001}"])
def test_clear_and_laser_change_what_is_learned(switch):
    assert not torch.equal(parameters_after([MIXED]), parameters_after([MIXED, switch]))
