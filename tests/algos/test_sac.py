"""SAC's losses against the papers' equations, one transition and one critic after another."""

import copy
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling.algos.base import ActInput
from starling.algos.sac import SAC
from starling.config.algo.sac import SACConfig
from starling.config.algo.transitions import PrioritizedConfig
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.ops.distributions import TanhGaussian
from starling.roles.gradients import differentiate
from starling.types import Batch, EnvSpec, Progress, Trajectory

DISCOUNT, ALPHA = 0.9, 0.3
OBSERVATION = spaces.Box(-9, 9, (5,), np.float32)
ACTIONS = {"box": spaces.Box(-1, 1, (2,), np.float32), "discrete": spaces.Discrete(3)}
STEPS = {"full": 3, "terminated": 2, "truncated": 2, "terminated at the last step": 3, "one step": 1}
"""Kinds of windows of up to 3 steps: how many were really taken."""


def make(actions, **settings):
    """The algorithm, a model and a target that differ."""
    torch.manual_seed(1)
    config = SACConfig(name="sac", discount=DISCOUNT, temperature=ALPHA, **settings)
    algorithm = SAC(config, NetConfig(torso=TorsoConfig(hidden=[16, 8], activation="tanh")))
    model, target = (algorithm.build(EnvSpec("x", OBSERVATION, ACTIONS[actions]), algorithm.streams()) for _ in "12")
    for parameter in (*model.parameters(), *target.parameters()):
        if parameter.dim() > 0:  # wide enough for policies and critics to have opinions
            parameter.data *= 2.0
    return algorithm, model, target


def make_batch(actions, length, seed=0):
    """A window of each kind [T, B], as a ring hands it out: the final observation repeated, all else zero."""
    random = torch.Generator().manual_seed(seed)
    taken = torch.tensor(list(STEPS.values())).clamp(max=length)
    rows, step, kinds = len(taken), torch.arange(length + 1)[:, None], np.array(list(STEPS))
    obs = torch.randn(length + 1, rows, 5, generator=random)
    obs = obs.gather(0, torch.minimum(step, taken)[..., None].expand(-1, -1, 5))
    valid, ends = step[:-1] < taken, (step[:-1] == taken - 1).numpy()
    box = 2.0 * torch.rand(length, rows, 2, generator=random) - 1.0
    choice = torch.randint(3, (length, rows), generator=random)
    steps = Trajectory(
        obs=obs,
        first=torch.zeros(length + 1, rows, dtype=torch.bool),
        action=box * valid[..., None] if actions == "box" else choice * valid,
        rewards={"extrinsic": torch.randn(length, rows, generator=random) * valid},
        terminated=torch.from_numpy(ends & np.char.startswith(kinds, "terminated")),
        truncated=torch.from_numpy(ends & np.isin(kinds, ["truncated", "one step"])),
        valid=valid,
        extras={"entropy": torch.randn(length + 1, rows, generator=random)},
        carry={},
        version=torch.zeros(rows, dtype=torch.int64),
    )
    weight = torch.rand(rows, generator=random)
    return Batch(steps, weight, torch.zeros(rows, dtype=torch.int64), Progress(), torch.Generator().manual_seed(7))


def one_q(critics, i, obs, action):
    """Q of critic `i` for one observation [5] and action: its layers by hand."""
    ensemble = critics.ensemble
    x = obs if ensemble.hidden[0].weight.shape[1] == 5 else torch.cat([obs, action])
    for layer in ensemble.hidden:
        x = torch.tanh(x @ layer.weight[i] + layer.bias[i, 0])
    q = x @ ensemble.last.weight[i] + ensemble.last.bias[i, 0]
    return q[0] if len(q) == 1 else q[action]


def one_policy(model, obs):
    return model.policy(obs[None], torch.zeros(1, dtype=torch.bool))


def soft_value(actions, policy, critics, obs, noise):
    """min_i Q_i(s, a) - alpha log pi(a | s), for a sampled action (1812.05905, eq. 3) or in expectation (1910.07207,
    eq. 10), and the entropy likewise."""
    if actions == "discrete":
        p = policy.logits[0].softmax(-1)
        each = [p[a] * (min(one_q(critics, i, obs, a) for i in range(2)) - ALPHA * p[a].log()) for a in range(len(p))]
        return sum(each), -sum(p[a] * p[a].log() for a in range(len(p)))
    mean, std = policy.mean[0], policy.log_std[0].exp()
    pre = mean + std * noise
    normal = torch.distributions.Normal(mean, std)
    action = torch.tanh(pre)
    log_prob = (normal.log_prob(pre) - torch.log(1.0 - torch.tanh(pre.double()) ** 2).float()).sum()
    return min(one_q(critics, i, obs, action) for i in range(2)) - ALPHA * log_prob, -log_prob


def slow_losses(algorithm, actions, model, target, batch):
    steps, rows = batch.trajectory, batch.trajectory.rows
    generator = torch.Generator().manual_seed(7)
    ahead, now = (torch.randn(rows, 2, generator=generator) for _ in "12")
    critic = actor = temperature = torch.zeros(())
    errors = []
    wanted = 0.98 * math.log(3) if actions == "discrete" else -2.0
    for b in range(rows):
        taken = int(steps.valid[:, b].sum())
        final = steps.obs[taken, b]
        with torch.no_grad():
            goal, discount = 0.0, 1.0
            for t in range(taken):
                bonus = ALPHA * steps.extras["entropy"][t, b] if t > 0 else 0.0
                goal += discount * (steps.rewards["extrinsic"][t, b] + bonus)
                discount *= 0.0 if steps.terminated[t, b] else DISCOUNT
            value, _ = soft_value(actions, one_policy(model, final), target.critics, final, ahead[b])
            goal = goal + discount * value
        obs = steps.obs[0, b]
        error = [goal - one_q(model.critics, i, obs, steps.action[0, b]) for i in range(2)]
        errors.append(sum(abs(e.item()) for e in error) / 2)
        critic = critic + batch.weight[b] * sum(0.5 * e**2 for e in error) / rows
        value, entropy = soft_value(actions, one_policy(model, obs), model.critics, obs, now[b])
        actor = actor - value / rows
        temperature = temperature + model.log_alpha.exp() * (entropy.detach() - wanted) / rows
    return {"critic": critic, "actor": actor, "temperature": temperature}, errors


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("n_step", [1, 3])
def test_losses_and_gradients_are_the_papers(actions, n_step):
    algorithm, model, target = make(actions, n_step=n_step, prioritized=PrioritizedConfig())
    batch = make_batch(actions, n_step)
    twin = copy.deepcopy(model)
    slow, errors = slow_losses(algorithm, actions, twin, target, batch)
    loss = algorithm.loss(model, target, batch)
    np.testing.assert_allclose(loss.priorities, errors, rtol=1e-4)
    for name, spec in algorithm.learning().optimizers.items():
        torch.testing.assert_close(loss.losses[name], slow[name], rtol=1e-4, atol=1e-5)
        mine = torch.autograd.grad(loss.losses[name], list(spec.parameters(model)), retain_graph=True)
        theirs = torch.autograd.grad(slow[name], list(spec.parameters(twin)), retain_graph=True)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
            assert one.abs().sum() > 0


@pytest.mark.parametrize("actions", ACTIONS)
def test_every_parameter_has_one_optimizer(actions):
    algorithm, model, _ = make(actions)
    moved = [p for spec in algorithm.learning().optimizers.values() for p in spec.parameters(model)]
    assert sorted(map(id, moved)) == sorted(map(id, model.parameters()))


def test_a_part_of_the_loss_has_optimizers_of_its_own():
    """What the learner does with it: all that the actor's part moves is the actor and the temperature."""
    algorithm, model, target = make("box")
    specs = algorithm.learning().optimizers
    parameters = {name: list(spec.parameters(model)) for name, spec in specs.items()}
    moved = [
        differentiate(part, parameters, nullcontext)[1] for part in algorithm.parts(model, target, make_batch("box", 1))
    ]
    assert [set(gradients) for gradients in moved] == [{"critic"}, {"actor", "temperature"}]
    assert all(gradient.any() for gradients in moved for found in gradients.values() for gradient in found)


def see(rows=2000, explore=True, updates=1):
    random = torch.Generator().manual_seed(3)
    return ActInput(
        obs=torch.zeros(rows, 5),
        first=torch.zeros(rows, dtype=torch.bool),
        carry={},
        rows=torch.arange(rows),
        total_rows=rows,
        progress=Progress(updates=updates),
        explore=explore,
        noise=lambda n: torch.rand(rows, n, generator=random),
    )


def test_before_the_first_update_actions_are_uniform_and_their_entropy_is_recorded():
    algorithm, model, _ = make("box", n_step=2)
    output = algorithm.act(model, see(updates=0))
    assert output.action.mean(0).abs().max() < 0.05
    np.testing.assert_allclose(output.action.std(0), 2 / 12**0.5, rtol=0.05)
    torch.testing.assert_close(output.extras["entropy"], torch.full((2000,), math.log(4)))
    algorithm, model, _ = make("discrete", n_step=2)
    output = algorithm.act(model, see(updates=0))
    np.testing.assert_allclose(torch.bincount(output.action) / 2000, 1 / 3, atol=0.04)
    torch.testing.assert_close(output.extras["entropy"], torch.full((2000,), math.log(3)))


def test_after_it_they_follow_the_policy():
    algorithm, model, _ = make("box", n_step=2)
    output, policy = algorithm.act(model, see()), model.policy(see().obs, see().first)
    expected = TanhGaussian(policy.mean, policy.log_std).log_prob(output.action)
    torch.testing.assert_close(output.extras["entropy"], -expected, rtol=1e-3, atol=1e-2)  # through atanh
    best = algorithm.act(model, see(explore=False, updates=0)).action
    torch.testing.assert_close(best, policy.mean.tanh())


def test_one_step_records_nothing():
    algorithm, model, _ = make("box")
    assert algorithm.act(model, see()).extras == {}


def test_other_networks_and_actions_are_refused():
    with pytest.raises(UserError, match="sac learns from single transitions"):
        SAC(SACConfig(name="sac"), NetConfig(core=CoreConfig(kind="lstm")))
    algorithm = SAC(SACConfig(name="sac"), NetConfig())
    with pytest.raises(UserError, match="sac needs a Discrete action space or a Box with one axis; x has"):
        algorithm.build(EnvSpec("x", OBSERVATION, spaces.MultiDiscrete([2, 2])), algorithm.streams())
