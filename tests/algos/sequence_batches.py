"""Windows of a ring with every kind of beginning and end, and R2D2's targets written as in the papers."""

import math

import torch
from policy_batches import env_spec

from starling.algos.r2d2 import R2D2
from starling.config.algo.r2d2 import R2D2Config
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.types import Batch, Progress, Trajectory

BURN_IN, UNROLL = 3, 5
LENGTH = BURN_IN + UNROLL
SETTINGS = {"discount": 0.9, "n_step": 3, "burn_in": BURN_IN, "unroll": UNROLL, "period": 2, "eta": 0.8}

BEGINS = [1, 2, 6]
STEPS = [8, 8, 2, 6, 8, 3, 7, 4]
TERMINATED, TRUNCATED = {2: 1, 4: 7, 7: 3}, {3: 5, 5: 2, 6: 6}
"""Of every row: does it begin an episode, how many steps does it have, which of them ends the episode and how.

Row 2 is a whole episode shorter than the burn-in; row 5 ends within its burn-in, so nothing of it is trained.
"""
ROWS = len(STEPS)


def make(core="lstm", inputs=("action", "reward"), **settings):
    """The algorithm, its network and another of other weights as the target."""
    torch.manual_seed(3)
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8), inputs=list(inputs))
    algorithm = R2D2(R2D2Config(name="r2d2", **{**SETTINGS, **settings}), net)
    model, target = (algorithm.build(env_spec(), algorithm.streams()) for _ in range(2))
    return algorithm, model, target


def make_batch(model, length=LENGTH, seed=0):
    """A random batch of windows; what was recorded when acting is random too."""
    random = torch.Generator().manual_seed(seed)
    steps = torch.tensor([min(n, length) for n in STEPS])
    valid = torch.arange(length).unsqueeze(1) < steps
    carry = model.initial_carry(ROWS)
    for leaf in carry["state"].values():
        leaf.normal_(generator=random)
    carry["action"] = torch.randint(3, (ROWS,), generator=random)
    carry["rewards"] = {"extrinsic": torch.randn(ROWS, generator=random)}
    obs = torch.randn(length + 1, ROWS, 5, generator=random)
    for b, n in enumerate(steps):
        obs[n + 1 :, b] = obs[n, b]  # padding repeats the final observation
    first = torch.zeros(length + 1, ROWS, dtype=torch.bool)
    first[0, BEGINS] = True
    return Batch(
        Trajectory(
            obs=obs,
            first=first,
            action=torch.where(valid, torch.randint(3, (length, ROWS), generator=random), 0),
            rewards={"extrinsic": torch.where(valid, 3 * torch.randn(length, ROWS, generator=random), 0.0)},
            terminated=_marked(TERMINATED, valid),
            truncated=_marked(TRUNCATED, valid),
            valid=valid,
            extras={
                "q": {"extrinsic": torch.randn(length + 1, ROWS, 3, generator=random)},
                "mu": torch.rand(length + 1, ROWS, generator=random).clamp(min=0.1),
                "features": torch.randn(length + 1, ROWS, 8, generator=random),
            },
            carry=carry,
            version=torch.zeros(ROWS, dtype=torch.int64),
        ),
        weight=torch.linspace(0.3, 1.0, ROWS),
        source=torch.zeros(ROWS, dtype=torch.int64),
        progress=Progress(),
        generator=random,
    )


def _marked(cells, valid):
    flags = torch.zeros_like(valid)
    for row, t in cells.items():
        if t < len(valid):
            flags[t, row] = True
    return flags


def slow_h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def slow_h_inverse(x):
    root = (math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3
    return math.copysign(root**2 - 1, x)


def slow_q(model, steps, b, config):
    """Q values [A] of window b, one observation after another; gradients only where steps are trained."""
    carry = {name: _row(value, b) for name, value in steps.carry.items()}
    if config.state == "zero":
        carry["state"] = {name: torch.zeros_like(leaf) for name, leaf in carry["state"].items()}
    seen = []
    for t in range(steps.length + 1):
        with torch.set_grad_enabled(bool(steps.first[0, b]) or t >= config.burn_in):
            outputs, state = model.step(steps.obs[t, b : b + 1], steps.first[t, b : b + 1], carry)
        seen.append(outputs["extrinsic"][0])
        if t < steps.length:
            carry = {"state": state, "action": steps.action[t, b : b + 1]}
            carry["rewards"] = {"extrinsic": steps.rewards["extrinsic"][t, b : b + 1]}
    return seen


def _row(value, b):
    return {name: _row(leaf, b) for name, leaf in value.items()} if isinstance(value, dict) else value[b : b + 1]


def slow_target(steps, b, t, q, q_target, config):
    """The n-step double-Q target of step t (R2D2, section 2.3), or Retrace's (1606.02647, eq. 3), inside h."""
    h, inverse = (slow_h, slow_h_inverse) if config.rescale else (float, float)
    end = int(steps.valid[:, b].sum())
    r = steps.rewards["extrinsic"][:, b].tolist()
    gamma = [0.0 if steps.terminated[i, b] else config.discount for i in range(end)]
    chooser = q if config.double else q_target
    best = [int(values.argmax()) for values in chooser]
    if config.retrace is None:
        value = [inverse(q_target[i][best[i]].item()) for i in range(len(q))]
        total, discount, i = 0.0, 1.0, t
        while i < min(t + config.n_step, end):
            total += discount * r[i]
            discount *= gamma[i]
            i += 1
        return h(total + discount * value[i])
    epsilon = config.eval_epsilon
    pi = [[epsilon / 3 + (1 - epsilon) * (a == best[i]) for a in range(3)] for i in range(len(q))]
    value = [sum(pi[i][a] * inverse(q_target[i][a].item()) for a in range(3)) for i in range(len(q))]
    taken = [inverse(q_target[i][steps.action[i, b]].item()) for i in range(end)]
    total, weight = taken[t], 1.0
    for i in range(t, end):
        if i > t:
            weight *= config.retrace * min(1.0, pi[i][steps.action[i, b]] / steps.extras["mu"][i, b].item())
        total += weight * (r[i] + gamma[i] * value[i + 1] - taken[i])
        weight *= gamma[i]
    return h(total)


def slow_loss(model, target, batch, config):
    """The loss and the priority of every window, one step after another."""
    steps, loss, priorities = batch.trajectory, torch.zeros(()), []
    for b in range(steps.rows):
        q = slow_q(model, steps, b, config)
        q_target = [values.detach() for values in slow_q(target, steps, b, config)]
        errors = []
        for t in range(int(steps.valid[:, b].sum())):
            if t < config.burn_in and not steps.first[0, b]:
                continue
            error = slow_target(steps, b, t, q, q_target, config) - q[t][steps.action[t, b]]
            small = abs(error.item()) <= config.huber
            huber = error**2 / 2 if small else config.huber * (error.abs() - config.huber / 2)
            loss = loss + batch.weight[b] * huber / steps.rows
            errors.append(abs(error.item()))
        mean = sum(errors) / max(len(errors), 1)
        priorities.append(config.eta * max(errors, default=0.0) + (1 - config.eta) * mean)
    return loss, torch.tensor(priorities)
