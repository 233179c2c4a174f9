"""Ring sequences with every kind of beginning and end, and R2D2's targets written as in the papers."""

import math
from dataclasses import dataclass
from functools import partial

import torch

from starling import tree
from starling.algos.r2d2.config import R2D2Config
from starling.algos.r2d2.r2d2 import R2D2
from starling.types import Batch, Progress, Trajectory
from support.policy_batches import env_spec
from support.slow_losses import CORE_SIZE, build, build_target, float64_net, in_float64, slow_huber

BURN_IN, UNROLL = 3, 5
LENGTH = BURN_IN + UNROLL
SETTINGS = {
    "discount": 0.9,
    "n_step": 3,
    "burn_in": BURN_IN,
    "unroll": UNROLL,
    "period": 2,
    "eta": 0.8,
    "dueling_hidden": [8],
}

BEGINS = (1, 2, 6)
STEPS = [8, 8, 2, 6, 8, 3, 7, 4, 5]
TERMINATED, TRUNCATED = {2: 1, 4: 7, 7: 3}, {3: 5, 5: 2, 6: 6, 8: 4}
"""For each row: whether it begins an episode, its number of steps, and which step ends the episode and how.

Row 2 is a whole episode shorter than the burn-in; row 5 ends within its burn-in, so none of its steps are trained.
"""
ROWS = len(STEPS)


def make(core="lstm", inputs=("action", "reward"), **settings):
    """The algorithm, its network, and a target network with other weights."""
    net = float64_net(core, inputs=list(inputs))
    algorithm = R2D2(R2D2Config(name="r2d2", **{**SETTINGS, **settings}), net)
    return algorithm, build(algorithm, env_spec()), build_target(algorithm, env_spec())


def make_batch(model, length=LENGTH, seed=0, begins=BEGINS, rewards=("extrinsic",), arms=1):
    """A random batch of sequences; what acting recorded is random too.

    The padding also has rewards and actions, which a loss must ignore.
    """
    random = torch.Generator().manual_seed(seed)
    steps = torch.tensor([min(n, length) for n in STEPS])
    valid = torch.arange(length).unsqueeze(1) < steps
    carry = model.initial_carry(ROWS)
    for leaf in tree.leaves(carry["state"]):
        leaf.normal_(generator=random)
    carry["action"] = torch.randint(3, (ROWS,), generator=random)
    carry["rewards"] = {name: torch.randn(ROWS, generator=random) for name in carry.get("rewards", {})}
    if "arm" in carry:
        carry["arm"] = torch.arange(ROWS) % arms
    obs = torch.randn(length + 1, ROWS, 5, generator=random)
    for b, n in enumerate(steps):
        obs[n + 1 :, b] = obs[n, b]  # so that TD errors have all magnitudes
    first = torch.zeros(length + 1, ROWS, dtype=torch.bool)
    first[0, list(begins)] = True
    magnitudes = torch.logspace(-1.0, 1.0, length)[torch.randperm(length, generator=random)]  # for errors of every size
    batch = Batch(
        Trajectory(
            obs=obs,
            first=first,
            action=torch.randint(3, (length, ROWS), generator=random),
            rewards={name: magnitudes[:, None] * torch.randn(length, ROWS, generator=random) for name in rewards},
            terminated=_marked(TERMINATED, valid),
            truncated=_marked(TRUNCATED, valid),
            valid=valid,
            extras={
                "q": {"extrinsic": torch.randn(length + 1, ROWS, 3, generator=random)},
                "mu": torch.rand(length + 1, ROWS, generator=random).clamp(min=0.1),
                "features": torch.randn(length + 1, ROWS, CORE_SIZE, generator=random),
            },
            carry=carry,
            policy_version=torch.zeros(ROWS, dtype=torch.int64),
        ),
        weight=torch.linspace(0.3, 1.0, ROWS),
        source=torch.zeros(ROWS, dtype=torch.int64),
        progress=Progress(),
        generator=random,
    )
    return in_float64(batch)


def _marked(cells, valid):
    flags = torch.zeros_like(valid)
    for row, t in cells.items():
        if t < len(valid):
            flags[t, row] = True
    return flags


@dataclass(frozen=True)
class SlowStream:
    """One Q head: its rewards [T, B], and for each row its discount and its weight in the combined Q values."""

    name: str
    reward: torch.Tensor
    discount: list[float]
    weight: list[float]


def slow_streams(specs, steps):
    """An algorithm's streams, with the same discount and weight in all rows."""
    return [
        SlowStream(s.name, steps.rewards[s.name], [s.discount] * steps.batch_size, [s.weight] * steps.batch_size)
        for s in specs
    ]


def slow_h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def slow_h_inverse(x):
    root = (math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3
    return math.copysign(root**2 - 1, x)


def slow_q(model, steps, b, config):
    """Q values [A] of sequence b for each head, one observation at a time; gradients only where steps are trained."""
    row = partial(tree.map, lambda leaf: leaf[b : b + 1])
    carry = row(steps.carry)
    if config.state == "zero":
        carry["state"] = tree.map(torch.zeros_like, carry["state"])
    all_outputs = []
    for t in range(steps.length + 1):
        obs = tree.map(lambda leaf, t=t: leaf[t, b : b + 1], steps.obs)
        with torch.set_grad_enabled(bool(steps.first[0, b]) or t >= config.burn_in):
            outputs, state = model.step(obs, steps.first[t, b : b + 1], carry)
        all_outputs.append(outputs)
        if t < steps.length:
            rewards = {name: steps.rewards[name][t, b : b + 1] for name in steps.carry["rewards"]}
            carry = {"state": state, "action": steps.action[t, b : b + 1], "rewards": rewards}
    return {name: [outputs[name][0] for outputs in all_outputs] for name in all_outputs[0]}


def slow_target(steps, b, t, stream, best, q_target, config):
    """The n-step target of step t (R2D2, section 2.3), or Retrace's (1606.02647, eq. 3), inside h.

    `best` is the policy's preferred action at every observation.
    """
    h, inverse = (slow_h, slow_h_inverse) if config.rescale else (float, float)
    end = int(steps.valid[:, b].sum())
    r = stream.reward[:, b].tolist()
    gamma = [0.0 if steps.terminated[i, b] else stream.discount[b] for i in range(end)]
    if config.retrace is None:
        value = [inverse(q_target[i][best[i]].item()) for i in range(len(best))]
        total, discount, i = 0.0, 1.0, t
        while i < min(t + config.n_step, end):
            total += discount * r[i]
            discount *= gamma[i]
            i += 1
        return h(total + discount * value[i])
    epsilon = config.eval_epsilon
    pi = [[epsilon / 3 + (1 - epsilon) * (a == best[i]) for a in range(3)] for i in range(len(best))]
    value = [sum(pi[i][a] * inverse(q_target[i][a].item()) for a in range(3)) for i in range(len(best))]
    taken = [inverse(q_target[i][steps.action[i, b]].item()) for i in range(end)]
    total, weight = taken[t], 1.0
    for i in range(t, end):
        if i > t:
            weight *= config.retrace * min(1.0, pi[i][steps.action[i, b]] / steps.extras["mu"][i, b].item())
        total += weight * (r[i] + gamma[i] * value[i + 1] - taken[i])
        weight *= gamma[i]
    return h(total)


def slow_losses(model, target, batch, config, streams):
    """The loss of each stream and the priority of each sequence, one step at a time."""
    steps, priorities, magnitudes = batch.trajectory, [], []
    losses = {stream.name: torch.zeros((), dtype=torch.float64) for stream in streams}
    for b in range(steps.batch_size):
        q, q_target = slow_q(model, steps, b, config), slow_q(target, steps, b, config)
        selector, best, errors = q if config.double else q_target, [], []
        for i in range(steps.length + 1):
            combined_q = [sum(s.weight[b] * selector[s.name][i][a].item() for s in streams) for a in range(3)]
            best.append(combined_q.index(max(combined_q)))
        for t in range(int(steps.valid[:, b].sum())):
            if t < config.burn_in and not steps.first[0, b]:
                continue
            errors.append(0.0)
            for s in streams:
                td_target = slow_target(steps, b, t, s, best, q_target[s.name], config)
                error = td_target - q[s.name][t][steps.action[t, b]]
                losses[s.name] = losses[s.name] + batch.weight[b] * slow_huber(error, config.huber) / steps.batch_size
                errors[-1] += s.weight[b] * abs(error.item())
                magnitudes.append(abs(error.item()))
        mean = sum(errors) / max(len(errors), 1)
        priorities.append(config.eta * max(errors, default=0.0) + (1 - config.eta) * mean)
    assert min(magnitudes) < config.huber < max(magnitudes), "errors must be in both regimes of the loss"
    return losses, torch.tensor(priorities, dtype=torch.float64)
