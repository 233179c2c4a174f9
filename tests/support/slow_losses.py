"""Slow reference losses that read like the papers: loops over t and b, plain numbers where the gradient stops.

Networks and batches are float64, so that losses and gradients agree to nine digits.
"""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from gymnasium import spaces
from torch import distributions, nn

from starling import tree
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.nets.torsos import space_leaves
from support.policy_batches import outputs_step_by_step, slow_vtrace


class Float64Torso(nn.Module):
    """One tanh layer over all leaves of an observation; the built-in torsos compute in float32."""

    def __init__(self, space, width=8):
        super().__init__()
        self.leaves = list(space_leaves(space))
        sizes = [int(leaf.n) if isinstance(leaf, spaces.Discrete) else math.prod(leaf.shape) for _, leaf in self.leaves]
        self.layer, self.size = nn.Linear(sum(sizes), width, dtype=torch.float64), width

    def forward(self, obs):
        parts = []
        for path, leaf in self.leaves:
            x = obs
            for key in path:
                x = x[key]
            parts.append(nn.functional.one_hot(x, int(leaf.n)) if isinstance(leaf, spaces.Discrete) else x.flatten(1))
        return torch.tanh(self.layer(torch.cat([part.double() for part in parts], dim=-1)))


TORSO, CORE_SIZE = TorsoConfig(kind="support.slow_losses:Float64Torso"), 6


def float64_net(core="none", **settings):
    return NetConfig(torso=TORSO, core=CoreConfig(kind=core, size=CORE_SIZE), **settings)


def build(algorithm, env, seed=3):
    """A float64 model with weights large enough that values differ and policies are far from uniform."""
    torch.manual_seed(seed)
    model = algorithm.build(env, algorithm.streams()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def build_target(algorithm, env):
    """A target network with other weights and, as in the learner, without gradients."""
    return build(algorithm, env, seed=4).requires_grad_(False)


def in_float64(batch):
    trajectory, weight = tree.map(
        lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, (batch.trajectory, batch.weight)
    )
    return replace(batch, trajectory=trajectory, weight=weight)


def assert_losses_match(algorithm, model, target, batch, expected, rtol=1e-9):
    """Compare every optimizer's loss and gradient with `expected`; returns the algorithm's `Loss`."""
    loss, specs = algorithm.loss(model, target, batch), algorithm.learning().optimizers
    assert loss.losses.keys() == expected.keys() == specs.keys()
    for name, spec in specs.items():
        torch.testing.assert_close(loss.losses[name], expected[name], rtol=rtol, atol=rtol, msg=_prefixed(name, "loss"))
        parameters = [parameter for parameter in spec.parameters(model) if parameter.requires_grad]
        gradients, expected_gradients = (_gradient(value, parameters) for value in (loss.losses[name], expected[name]))
        assert any(gradient.any() for gradient in expected_gradients), (
            f"{name}: the gradient is 0, so nothing is compared"
        )
        for got, want in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(got, want, rtol=rtol, atol=rtol, msg=_prefixed(name, "gradient"))
    return loss


def _prefixed(name, what):
    return lambda message: f"{what} of {name}: {message}"


def _gradient(loss, parameters):
    return torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)


def valid_cells(steps):
    return [(t, b) for t, b in product(range(steps.length), range(steps.batch_size)) if steps.valid[t, b]]


def slow_huber(error, delta):
    """error^2 / 2, continued linearly with slope delta beyond |error| = delta."""
    return error**2 / 2 if abs(error.item()) <= delta else delta * (abs(error) - delta / 2)


def policy_at(params, *at):
    """The policy with these parameters at one index: one torch distribution per action dimension."""
    if "mean" in params:
        mean, std = params["mean"][at], params["log_std"][at].exp()
        return [distributions.Normal(*both) for both in zip(mean, std, strict=True)]
    return [distributions.Categorical(logits=logits[at]) for logits in params.values()]


def log_prob(policy, action):
    return sum(got.log_prob(part) for got, part in zip(policy, action.reshape(-1), strict=True))


def entropy(policy):
    return sum(got.entropy() for got in policy)


def kl(policy, want):
    return sum(distributions.kl_divergence(*both) for both in zip(policy, want, strict=True))


def values_of(outputs_at, name):
    """The outputs of one value head as numbers [T+1, B]."""
    return np.array([outputs[name].tolist() for outputs in outputs_at])


def slow_dqn(model, target, batch, config, streams):
    """Loss and priorities of n-step Q-learning (Mnih 2015; double: 1509.06461, eq. 4), one transition at a time.

    r_1 + gamma r_2 + ... + gamma^m Q_target(s_m, argmax_a Q(s_m, a)) - Q(s_0, a_0), with m the steps really taken.
    """
    steps, loss, priorities = batch.trajectory, torch.zeros((), dtype=torch.float64), []

    def q(network, t, b):
        return network.step(steps.obs[t, b : b + 1], steps.first[t, b : b + 1], {})[0]

    for b in range(steps.batch_size):
        taken = int(steps.valid[:, b].sum())
        first, last = q(model, 0, b), q(target, taken, b)
        selector = q(model, taken, b) if config.double else last
        combined_q = [sum(s.weight * selector[s.name][0, a].item() for s in streams) for a in range(3)]
        best, priority = combined_q.index(max(combined_q)), 0.0
        for stream in streams:
            td_target, discount = 0.0, 1.0
            for t in range(taken):
                td_target += discount * steps.rewards[stream.name][t, b].item()
                discount *= 0.0 if steps.terminated[t, b] else stream.discount
            td_target += discount * last[stream.name][0, best].item()
            error = td_target - first[stream.name][0, steps.action[0, b]]
            loss = loss + batch.weight[b] * slow_huber(error, config.huber) / steps.batch_size
            priority += stream.weight * abs(error.item())
        priorities.append(priority)
    return loss, torch.tensor(priorities, dtype=torch.float64)


def slow_retrace_dqn(model, target, batch, config, streams):
    """Loss and priorities of Q-learning with Retrace (1606.02647, eq. 3), one transition at a time.

    Q_target(s_0, a_0) + sum_t gamma^t (prod_{1<=i<=t} lambda min(1, pi(a_i) / mu(a_i))) (r_t + gamma sum_a pi(a)
    Q_target(s_{t+1}, a) - Q_target(s_t, a_t)) - Q(s_0, a_0); pi is epsilon-greedy in Q, or in Q_target if not double.
    """
    steps, loss, priorities, epsilon = batch.trajectory, torch.zeros((), dtype=torch.float64), [], config.eval_epsilon

    def q(network, t, b):
        return network.step(steps.obs[t, b : b + 1], steps.first[t, b : b + 1], {})[0]

    def pi(t, b):
        seen = q(model if config.double else target, t, b)
        combined_q = [sum(s.weight * seen[s.name][0, a].item() for s in streams) for a in range(3)]
        best = combined_q.index(max(combined_q))
        return [epsilon / 3 + (1 - epsilon) * (a == best) for a in range(3)]

    for b in range(steps.batch_size):
        priority, action = 0.0, steps.action[:, b].tolist()
        for stream in streams:
            values = [q(target, t, b)[stream.name][0].tolist() for t in range(steps.length + 1)]
            td_target, weight = values[0][action[0]], 1.0
            for t in range(int(steps.valid[:, b].sum())):
                if t > 0:
                    weight *= config.retrace * min(1.0, pi(t, b)[action[t]] / steps.extras["mu"][t, b].item())
                gamma = 0.0 if steps.terminated[t, b] else stream.discount
                v = sum(p * value for p, value in zip(pi(t + 1, b), values[t + 1], strict=True))
                td_target += weight * (steps.rewards[stream.name][t, b].item() + gamma * v - values[t][action[t]])
                weight *= gamma
            error = td_target - q(model, 0, b)[stream.name][0, action[0]]
            loss = loss + batch.weight[b] * slow_huber(error, config.huber) / steps.batch_size
            priority += stream.weight * abs(error.item())
        priorities.append(priority)
    return loss, torch.tensor(priorities, dtype=torch.float64)


def slow_ppo(before, model, batch, config, streams, clip, cells=None):
    """PPO's loss (1707.06347, eq. 9) of a minibatch of `cells`, or of all; `before` is the model before any update.

    Advantages are GAE's (1506.02438, eq. 16), which is V-trace with ratios of 1. With asynchronous actors the ratios
    are those of `before` to the recorded policy, and an advantage leaves out its own step's ratio, which the surrogate
    applies.
    """
    steps = batch.trajectory
    every, given = (
        valid_cells(steps),
        list(product(range(steps.length), range(steps.batch_size))) if cells is None else cells,
    )
    cells, resets = ([cell for cell in given if (cell in every) == valid] for valid in (True, False))
    outputs_at = outputs_step_by_step(model, steps)
    with torch.no_grad():
        old = outputs_step_by_step(before, steps)
    log_old = {(t, b): log_prob(policy_at(old[t]["policy"].params(), b), steps.action[t, b]).item() for t, b in every}
    log_mu = {(t, b): steps.extras["log_prob"][t, b].item() for t, b in every} if config.max_lag else log_old
    ratio = np.ones((steps.length, steps.batch_size))
    for cell in every:
        ratio[cell] = math.exp(log_old[cell] - log_mu[cell])
    total, targets, advantage = torch.zeros((), dtype=torch.float64), {}, 0.0
    for s in streams:
        vs, own = slow_vtrace(
            steps, ratio, values_of(old, s.name), s.discount, s.lambda_, stream=s.name, episodic=s.episodic
        )
        targets[s.name], advantage = vs, advantage + s.weight * own
    used = np.array([advantage[cell] for cell in cells])
    mean, std = (used.mean(), used.std() + 1e-8) if config.normalize_advantages else (0.0, 1.0)

    def value_loss(name, t, b):
        v, v_old, vs = outputs_at[t][name][b], old[t][name][b].item(), targets[name][t, b]
        if config.value_clip is None:
            return (v - vs) ** 2 / 2
        clipped = v_old + (v - v_old).clamp(-config.value_clip, config.value_clip)
        return torch.maximum((v - vs) ** 2, (clipped - vs) ** 2) / 2

    for t, b in cells:
        policy = policy_at(outputs_at[t]["policy"].params(), b)
        rho, a = torch.exp(log_prob(policy, steps.action[t, b]) - log_mu[t, b]), (advantage[t, b] - mean) / std
        total = total - torch.minimum(rho * a, rho.clamp(1 - clip, 1 + clip) * a)
        total = total + config.value_coef * sum(value_loss(s.name, t, b) for s in streams)
        total = total - config.entropy_coef * entropy(policy)
    for s in streams:  # a non-episodic return continues after the final observation, so its value has a target
        if not s.episodic:
            total = total + config.value_coef * sum(value_loss(s.name, t, b) for t, b in resets)
    return total / len(cells)


def slow_impala(model, batch, config, streams, replayed):
    """IMPALA's loss (1802.01561, section 4.2), summed, with CLEAR (1811.11682) and LASER (1909.11583) if configured.

    `replayed` are the rows of replayed experience.
    """
    steps, outputs_at, cells = (
        batch.trajectory,
        outputs_step_by_step(model, batch.trajectory),
        valid_cells(batch.trajectory),
    )
    pi = {(t, b): policy_at(outputs_at[t]["policy"].params(), b) for t, b in cells}
    mu = {(t, b): policy_at(steps.extras["behavior"], t, b) for t, b in cells}
    log_pi = {cell: log_prob(pi[cell], steps.action[cell]) for cell in cells}
    ratio, keep = np.ones((steps.length, steps.batch_size)), np.ones((steps.length, steps.batch_size))
    for cell in cells:
        ratio[cell] = math.exp(log_pi[cell].item() - log_prob(mu[cell], steps.action[cell]).item())
        keep[cell] = config.laser is None or slow_relevance(pi[cell], mu[cell], config) <= config.laser.threshold
    assert ratio.min() < config.clip_c <= config.clip_rho < ratio.max(), "some ratios must be clipped, and some not"
    assert config.laser is None or 0 < keep.mean() < 1, "some states must be relevant, and some not"
    total, weight = torch.zeros((), dtype=torch.float64), [1.0] * steps.batch_size
    if config.sources is not None and any(source.kind == "prioritized" for source in config.sources):
        weight = batch.weight.tolist()
    rho = keep * np.minimum(config.clip_rho, ratio)
    for s in streams:
        vs, advantage = slow_vtrace(
            steps, ratio, values_of(outputs_at, s.name), s.discount, s.lambda_, config.clip_rho, config.clip_c,
            stream=s.name, episodic=s.episodic, keep=keep,
        )  # fmt: skip
        for t, b in product(range(steps.length), range(steps.batch_size)):
            error = vs[t, b] - outputs_at[t][s.name][b]  # 0 at the resets of an episodic stream
            total = total + weight[b] * config.value_coef * error**2 / 2
        for t, b in cells:
            total = total - weight[b] * s.weight * rho[t, b] * advantage[t, b] * log_pi[t, b]
    for t, b in cells:
        if config.laser is None or (keep[t, b] and b not in replayed):
            total = total - weight[b] * config.entropy_coef * entropy(pi[t, b])
        if config.clear is not None and keep[t, b] and b in replayed:
            clones = [(outputs_at[t][s.name][b] - steps.extras["values"][s.name][t, b]) ** 2 for s in streams]
            total = total + weight[b] * config.clear.policy_cost * kl(mu[t, b], pi[t, b])
            total = total + weight[b] * config.clear.value_cost * sum(clones)
    return total


def slow_relevance(pi, mu, config):
    """KL(pi || implied policy), or KL(pi || mu), at one state (1909.11583, section 4)."""
    if config.laser.reference == "behavior":
        return kl(pi, mu).item()
    (p,), (m,) = ([got.probs.tolist() for got in policy] for policy in (pi, mu))
    clipped_mu = [min(config.clip_rho * m_a, p_a) for p_a, m_a in zip(p, m, strict=True)]
    return sum(p_a * math.log(p_a / (c_a / sum(clipped_mu))) for p_a, c_a in zip(p, clipped_mu, strict=True))


def slow_impact(model, target, batch, config, streams, clip):
    """IMPACT's loss (1912.00167, algorithm 1 and section 3.1); the target network's outputs are plain numbers."""
    steps, cells = batch.trajectory, valid_cells(batch.trajectory)
    outputs_at, target_outputs = outputs_step_by_step(model, steps), outputs_step_by_step(target, steps)
    pi = {(t, b): policy_at(outputs_at[t]["policy"].params(), b) for t, b in cells}
    p_pi = {cell: log_prob(pi[cell], steps.action[cell]).exp() for cell in cells}
    p_worker = {
        cell: log_prob(policy_at(steps.extras["behavior"], *cell), steps.action[cell]).exp().item() for cell in cells
    }
    p_target = {
        (t, b): log_prob(policy_at(target_outputs[t]["policy"].params(), b), steps.action[t, b]).exp().item()
        for t, b in cells
    }
    ratio, advantage, errors = np.ones((steps.length, steps.batch_size)), 0.0, {}
    for cell in cells:
        ratio[cell] = p_target[cell] / p_worker[cell]
    assert ratio.min() < 1 / config.target_ratio_clip < config.clip_c < config.clip_rho < ratio.max(), (
        "some ratios must be clipped, and some not"
    )
    for s in streams:
        vs, own = slow_vtrace(
            steps, ratio, values_of(outputs_at, s.name), s.discount, s.lambda_, config.clip_rho, config.clip_c,
            stream=s.name, episodic=s.episodic,
        )  # fmt: skip
        advantage = advantage + s.weight * np.minimum(config.clip_rho, ratio) * own
        every = cells if s.episodic else product(range(steps.length), range(steps.batch_size))
        errors[s.name] = sum((vs[t, b] - outputs_at[t][s.name][b]) ** 2 / 2 for t, b in every)
    total = config.value_coef * sum(errors.values())
    for cell in cells:
        r = p_pi[cell] / max(p_target[cell], p_worker[cell] / config.target_ratio_clip)
        total = total - torch.minimum(r * advantage[cell], r.clamp(1 - clip, 1 + clip) * advantage[cell])
        total = total - config.entropy_coef * entropy(pi[cell])
    return total / len(cells)
