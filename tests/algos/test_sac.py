"""SAC's losses compared with the papers' equations, one transition and one critic at a time."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.policy_batches import OBSERVATION, env_spec
from support.slow_losses import TORSO, assert_losses_match, build, build_target, in_float64
from support.transition_batches import make_transitions

from starling.algos.base import ActInput
from starling.algos.sac.config import SACConfig
from starling.algos.sac.sac import SAC
from starling.algos.settings import PrioritizedConfig
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.learner.gradients import differentiate
from starling.ops.distributions import TanhGaussian
from starling.types import EnvSpec, Progress

DISCOUNT, ALPHA = 0.9, 0.3
ACTIONS = ["box", "discrete"]
HIDDEN = {"hidden": [16, 8], "activation": "tanh"}


def make(actions, **settings):
    """The algorithm and a model."""
    torch.manual_seed(1)
    config = SACConfig(name="sac", discount=DISCOUNT, temperature=ALPHA, **settings)
    algorithm = SAC(config, NetConfig(torso=TorsoConfig(**HIDDEN)))
    return algorithm, algorithm.build(env_spec(actions), algorithm.streams())


def make_float64(actions, **settings):
    """The algorithm, a model, and a target network with other weights."""
    config = SACConfig(name="sac", discount=DISCOUNT, temperature=ALPHA, **settings)
    algorithm = SAC(config, NetConfig(torso=TORSO.model_copy(update=HIDDEN)))
    return algorithm, build(algorithm, env_spec(actions)), build_target(algorithm, env_spec(actions))


def one_q(critics, i, obs, action):
    """Q of critic `i` for one observation [5] and action, layer by layer."""
    ensemble, x = critics.ensemble, critics.encode(obs[None])[0]
    if ensemble.last.weight.shape[-1] == 1:
        x = torch.cat([x, action])
    for layer in ensemble.hidden:
        x = torch.tanh(x @ layer.weight[i] + layer.bias[i, 0])
    q = x @ ensemble.last.weight[i] + ensemble.last.bias[i, 0]
    return q[0] if len(q) == 1 else q[action]


def one_policy(model, obs):
    return model.policy(obs[None], torch.zeros(1, dtype=torch.bool))


def slow_value(actions, policy, critics, obs, noise, alpha):
    """min_i Q_i(s, a) - alpha log pi(a | s), for a sampled action (1812.05905, eq. 3) or in expectation (1910.07207,
    eq. 10), and the entropy in the same way.
    """
    if actions == "discrete":
        p = policy.logits[0].softmax(-1)
        each = [p[a] * (min(one_q(critics, i, obs, a) for i in range(2)) - alpha * p[a].log()) for a in range(len(p))]
        return sum(each), -sum(p[a] * p[a].log() for a in range(len(p)))
    mean, std = policy.mean[0], policy.log_std[0].exp()
    pre = mean + std * noise
    action = torch.tanh(pre)
    log_prob = (torch.distributions.Normal(mean, std).log_prob(pre) - torch.log(1.0 - action**2)).sum()
    return min(one_q(critics, i, obs, action) for i in range(2)) - alpha * log_prob, -log_prob


def slow_losses(actions, model, target, batch, target_entropy):
    """The losses of critics (1812.05905, eq. 5), policy (eq. 9), and temperature (eq. 18), and the TD errors."""
    steps, rows = batch.trajectory, batch.trajectory.batch_size
    generator = torch.Generator().manual_seed(7)
    ahead, now = (torch.randn(rows, 2, generator=generator).double() for _ in "12")
    critic = actor = temperature = torch.zeros((), dtype=torch.float64)
    errors, alpha = [], model.log_alpha.exp().item()
    for b in range(rows):
        taken = int(steps.valid[:, b].sum())
        final = steps.obs[taken, b]
        with torch.no_grad():
            td_target, discount = 0.0, 1.0
            for t in range(taken):
                bonus = alpha * steps.extras["entropy"][t, b] if t > 0 else 0.0
                td_target += discount * (steps.rewards["extrinsic"][t, b] + bonus)
                discount *= 0.0 if steps.terminated[t, b] else DISCOUNT
            value, _ = slow_value(actions, one_policy(model, final), target.critics, final, ahead[b], alpha)
            td_target = td_target + discount * value
        obs = steps.obs[0, b]
        error = [td_target - one_q(model.critics, i, obs, steps.action[0, b]) for i in range(2)]
        errors.append(sum(abs(e.item()) for e in error) / 2)
        critic = critic + batch.weight[b] * sum(0.5 * e**2 for e in error) / rows
        value, entropy = slow_value(actions, one_policy(model, obs), model.critics, obs, now[b], alpha)
        actor = actor - value / rows
        temperature = temperature + model.log_alpha.exp() * (entropy.item() - target_entropy) / rows
    return {"critic": critic, "actor": actor, "temperature": temperature}, errors


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("target_entropy", [None, -0.7])
def test_losses_and_gradients_match_the_papers(actions, n_step, target_entropy):
    settings = {"n_step": n_step, "target_entropy": target_entropy, "prioritized": PrioritizedConfig()}
    algorithm, model, target = make_float64(actions, **settings)
    batch = in_float64(make_transitions(actions, n_step))
    if target_entropy is None:
        target_entropy = 0.98 * math.log(3) if actions == "discrete" else -2.0
    slow, errors = slow_losses(actions, model, target, batch, target_entropy)
    loss = assert_losses_match(algorithm, model, target, batch, slow, rtol=1e-6)  # the noise is drawn in float32
    np.testing.assert_allclose(loss.priorities, errors, rtol=1e-6)


@pytest.mark.parametrize("actions", ACTIONS)
def test_every_parameter_has_one_optimizer(actions):
    algorithm, model = make(actions)
    moved = [p for spec in algorithm.learning().optimizers.values() for p in spec.parameters(model)]
    assert sorted(map(id, moved)) == sorted(map(id, model.parameters()))


def test_actor_part_of_the_loss_affects_only_the_actor_and_the_temperature():
    """As in the learner, which steps the optimizers of each part separately."""
    algorithm, model, target = make_float64("box")
    specs = algorithm.learning().optimizers
    parameters = {name: list(spec.parameters(model)) for name, spec in specs.items()}
    moved = [
        differentiate(part.compute, parameters, nullcontext)[1]
        for part in algorithm.parts(model, target, in_float64(make_transitions("box", 1)))
    ]
    assert [set(gradients) for gradients in moved] == [{"critic"}, {"actor", "temperature"}]
    assert all(gradient.any() for gradients in moved for found in gradients.values() for gradient in found)


def act_input(num_envs=2000, explore=True, updates=1):
    random = torch.Generator().manual_seed(3)
    return ActInput(
        obs=torch.zeros(num_envs, 5),
        first=torch.zeros(num_envs, dtype=torch.bool),
        carry={},
        env_index=torch.arange(num_envs),
        num_envs=num_envs,
        progress=Progress(updates=updates),
        explore=explore,
        noise=lambda n: torch.rand(num_envs, n, generator=random),
    )


def test_before_the_first_update_actions_are_uniform_and_their_entropy_is_recorded():
    algorithm, model = make("box", n_step=2)
    output = algorithm.act(model, act_input(updates=0))
    assert output.action.mean(0).abs().max() < 0.05
    np.testing.assert_allclose(output.action.std(0), 2 / 12**0.5, rtol=0.05)
    torch.testing.assert_close(output.extras["entropy"], torch.full((2000,), math.log(4)))
    algorithm, model = make("discrete", n_step=2)
    output = algorithm.act(model, act_input(updates=0))
    np.testing.assert_allclose(torch.bincount(output.action) / 2000, 1 / 3, atol=0.04)
    torch.testing.assert_close(output.extras["entropy"], torch.full((2000,), math.log(3)))


def test_after_the_first_update_actions_follow_the_policy():
    algorithm, model = make("box", n_step=2)
    output, policy = algorithm.act(model, act_input()), model.policy(act_input().obs, act_input().first)
    expected = TanhGaussian(policy.mean, policy.log_std).log_prob(output.action)
    torch.testing.assert_close(output.extras["entropy"], -expected, rtol=1e-3, atol=1e-2)  # compared through atanh
    best = algorithm.act(model, act_input(explore=False, updates=0)).action
    torch.testing.assert_close(best, policy.mean.tanh())


def test_one_step_sac_records_no_extras():
    algorithm, model = make("box")
    assert algorithm.act(model, act_input()).extras == {}


def test_unsupported_networks_and_actions_are_rejected():
    with pytest.raises(UserError, match="sac learns from single transitions"):
        SAC(SACConfig(name="sac"), NetConfig(core=CoreConfig(kind="lstm")))
    algorithm = SAC(SACConfig(name="sac"), NetConfig())
    with pytest.raises(UserError, match="sac needs a Discrete action space or a Box with one axis; x has"):
        algorithm.build(EnvSpec("x", OBSERVATION, spaces.MultiDiscrete([2, 2])), algorithm.streams())
