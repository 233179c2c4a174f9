"""Batches with every kind of episode end, and V-trace written as in the paper, for policy-gradient losses."""

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from starling import tree
from starling.types import Batch, EnvSpec, Progress, Trajectory

LENGTH, ROWS = 8, 4
OBSERVATION = spaces.Box(-9, 9, (5,), np.float32)
ACTIONS = {"discrete": spaces.Discrete(3), "multi": spaces.MultiDiscrete([3, 2])}
SPACES = {**ACTIONS, "box": spaces.Box(-1, 1, (2,), np.float32)}
TERMINATED, TRUNCATED = [(2, 1), (LENGTH - 1, 2)], [(1, 2)]
RESETS = [(3, 1), (2, 2), (0, 3)]
"""(t, row): row 0 has no end, 1 terminates, 2 is truncated and terminates at the last step, 3 begins with a reset."""


def env_spec(actions="discrete"):
    return EnvSpec("random", OBSERVATION, SPACES[actions])


def marked(cells):
    flags = torch.zeros(LENGTH, ROWS, dtype=torch.bool)
    flags[tuple(zip(*cells, strict=True))] = True
    return flags


def make_batch(model, extras, actions="discrete", seed=0, intrinsic=()):
    """A random batch for `model`.

    `extras(shape, generator)` makes what acting recorded; `intrinsic` names further reward streams.
    """
    random, sizes = torch.Generator().manual_seed(seed), np.atleast_1d(getattr(SPACES[actions], "nvec", [3]))
    valid = ~marked(RESETS)
    action = torch.stack([torch.randint(int(n), (LENGTH, ROWS), generator=random) for n in sizes], dim=-1)
    reward = torch.randn(LENGTH, ROWS, generator=random)
    carry = model.initial_carry(ROWS)
    for leaf in tree.leaves(carry.get("state")):
        leaf.normal_(generator=random)
    steps = Trajectory(
        obs=torch.randn(LENGTH + 1, ROWS, 5, generator=random),
        first=torch.cat([torch.zeros(1, ROWS, dtype=torch.bool), ~valid]),  # the step after a reset begins an episode
        action={"discrete": action[..., 0], "multi": action}.get(actions),
        rewards={"extrinsic": torch.where(valid, reward, 0.0)},
        terminated=marked(TERMINATED),
        truncated=marked(TRUNCATED),
        valid=valid,
        extras=extras((LENGTH + 1, ROWS), random),
        carry=carry,
        policy_version=torch.zeros(ROWS, dtype=torch.int64),
    )
    if actions == "box":
        steps = replace(steps, action=torch.randn(LENGTH, ROWS, 2, generator=random))
    intrinsic_rewards = {
        name: torch.where(valid, torch.randn(LENGTH, ROWS, generator=random), 0.0) for name in intrinsic
    }
    steps = replace(steps, rewards={**steps.rewards, **intrinsic_rewards})
    return Batch(steps, torch.ones(ROWS), torch.zeros(ROWS, dtype=torch.int64), Progress(), random)


def gradient_at_resets(loss, batch):
    """The gradient of loss(batch) at the observation of every reset, the last of an episode, [resets, 5]."""
    obs = batch.trajectory.obs.clone().requires_grad_()
    loss(replace(batch, trajectory=replace(batch.trajectory, obs=obs))).backward()
    return obs.grad[:-1][marked(RESETS)]


def episodes(valid):
    """Yield (row, start, stop) for every run of valid steps."""
    for row in range(valid.shape[1]):
        edges = np.flatnonzero(np.diff([0, *valid[:, row].int().tolist(), 0])).reshape(-1, 2)
        yield from ((row, int(start), int(stop)) for start, stop in edges)


def outputs_step_by_step(model, steps):
    """The outputs of all heads at each of the T + 1 observations, with the carry passed on explicitly."""
    carry, all_outputs = dict(steps.carry), []
    for t in range(steps.length + 1):
        outputs, state = model.step(steps.obs[t], steps.first[t], carry)
        all_outputs.append(outputs)
        if t < steps.length:
            carry = {"state": state, "action": steps.action[t], "rewards": {k: r[t] for k, r in steps.rewards.items()}}
    return all_outputs


def slow_vtrace(
    steps, ratio, v, discount, lambda_=1.0, clip_rho=1.0, clip_c=1.0, *, stream="extrinsic", episodic=True, keep=None
):
    """V-trace targets vs (1802.01561, eq. 1) and unweighted advantages r + gamma vs' - v, [T, B] each, in float64.

    `ratio` is [T, B], `v` [T+1, B]. In an episodic stream episodes are independent: at resets vs is v and the
    advantage is 0. Other streams continue through a reset, a step with reward 0, discount 1, lambda 1, and weight 1.
    Where `keep` is False, rho and c are 0 (LASER). With lambda < 1, advantages bootstrap from lambda vs' + (1-lambda)
    V'.
    """
    r, valid = steps.rewards[stream].double().numpy(), steps.valid.numpy()
    rho, c = np.minimum(clip_rho, ratio), np.minimum(clip_c, ratio)
    if keep is not None:
        rho, c = rho * keep, c * keep
    gamma, trace = np.full_like(r, discount), np.full_like(r, lambda_)
    spans = list(episodes(steps.valid))
    if episodic:
        gamma[steps.terminated.numpy()] = 0.0
    else:
        spans = [(b, 0, steps.length) for b in range(steps.batch_size)]
        r = np.where(valid, r, 0.0)
        rho, c, gamma, trace = (np.where(valid, x, 1.0) for x in (rho, c, gamma, trace))
    vs, advantage = v[:-1].copy(), np.zeros_like(r)
    for b, start, stop in spans:
        for s in range(start, stop):
            weight = 1.0
            for t in range(s, stop):
                vs[s, b] += weight * rho[t, b] * (r[t, b] + gamma[t, b] * v[t + 1, b] - v[t, b])
                weight *= gamma[t, b] * trace[t, b] * c[t, b]
        for s in range(start, stop):
            vs_next = vs[s + 1, b] if s + 1 < stop else v[stop, b]
            following = trace[s, b] * vs_next + (1.0 - trace[s, b]) * v[s + 1, b]
            advantage[s, b] = r[s, b] + gamma[s, b] * following - v[s, b]
    return vs, advantage
