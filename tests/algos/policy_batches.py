"""Batches with every kind of end in them, and V-trace written as in the paper, for policy-gradient losses."""

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from starling.types import Batch, EnvSpec, Progress, Trajectory

LENGTH, ROWS = 8, 4
OBSERVATION = spaces.Box(-9, 9, (5,), np.float32)
ACTIONS = {"discrete": spaces.Discrete(3), "multi": spaces.MultiDiscrete([3, 2])}
TERMINATED, TRUNCATED = [(2, 1), (LENGTH - 1, 2)], [(1, 2)]
RESETS = [(3, 1), (2, 2), (0, 3)]
"""(t, row): row 0 goes on, 1 terminates, 2 is truncated and terminates with the last step, 3 begins with a reset."""


def env_spec(actions="discrete"):
    return EnvSpec("random", OBSERVATION, ACTIONS[actions])


def marked(cells):
    flags = torch.zeros(LENGTH, ROWS, dtype=torch.bool)
    flags[tuple(zip(*cells, strict=True))] = True
    return flags


def make_batch(model, extras, actions="discrete", seed=0):
    """A random batch for `model`; extras(shape, generator) is what acting recorded."""
    random, sizes = torch.Generator().manual_seed(seed), np.atleast_1d(getattr(ACTIONS[actions], "nvec", [3]))
    valid = ~marked(RESETS)
    action = torch.stack([torch.randint(int(n), (LENGTH, ROWS), generator=random) for n in sizes], dim=-1)
    reward = torch.randn(LENGTH, ROWS, generator=random)
    carry = model.initial_carry(ROWS)
    for leaf in carry.get("state", {}).values():
        leaf.normal_(generator=random)
    steps = Trajectory(
        obs=torch.randn(LENGTH + 1, ROWS, 5, generator=random),
        first=torch.cat([torch.zeros(1, ROWS, dtype=torch.bool), ~valid]),  # the reset's outcome begins an episode
        action=action if actions == "multi" else action[..., 0],
        rewards={"extrinsic": torch.where(valid, reward, 0.0)},
        terminated=marked(TERMINATED),
        truncated=marked(TRUNCATED),
        valid=valid,
        extras=extras((LENGTH + 1, ROWS), random),
        carry=carry,
        version=torch.zeros(ROWS, dtype=torch.int64),
    )
    return Batch(steps, torch.ones(ROWS), torch.zeros(ROWS, dtype=torch.int64), Progress(), random)


def gradient_at_resets(loss, batch):
    """How loss(batch) depends on the observation of every reset, an episode's last, [resets, 5]."""
    obs = batch.trajectory.obs.clone().requires_grad_()
    loss(replace(batch, trajectory=replace(batch.trajectory, obs=obs))).backward()
    return obs.grad[:-1][marked(RESETS)]


def episodes(valid):
    """(row, start, stop) of every run of valid steps."""
    for row in range(valid.shape[1]):
        edges = np.flatnonzero(np.diff([0, *valid[:, row].int().tolist(), 0])).reshape(-1, 2)
        yield from ((row, int(start), int(stop)) for start, stop in edges)


def outputs_step_by_step(model, steps):
    """What the heads say to each of the T + 1 observations, the carry moved on by hand."""
    carry, seen = dict(steps.carry), []
    for t in range(steps.length + 1):
        outputs, state = model.step(steps.obs[t], steps.first[t], carry)
        seen.append(outputs)
        if t < steps.length:
            carry = {"state": state, "action": steps.action[t], "rewards": {k: r[t] for k, r in steps.rewards.items()}}
    return seen


def slow_vtrace(steps, ratio, v, discount, lambda_=1.0, clip_rho=1.0, clip_c=1.0):
    """vs and policy-gradient advantages (1802.01561, eq. 1 and section 4.2), each episode by itself, in float64.

    `ratio` is [T, B], `v` [T+1, B]; where nothing is said, on resets, vs is v and the advantage 0.
    """
    r, ended = steps.rewards["extrinsic"].double().numpy(), steps.terminated.numpy()
    rho, c = np.minimum(clip_rho, ratio), lambda_ * np.minimum(clip_c, ratio)
    vs, advantage = v[:-1].copy(), np.zeros_like(r)
    for b, start, stop in episodes(steps.valid):
        gamma = np.where(ended[:, b], 0.0, discount)
        for s in range(start, stop):
            weight = 1.0
            for t in range(s, stop):
                vs[s, b] += weight * rho[t, b] * (r[t, b] + gamma[t] * v[t + 1, b] - v[t, b])
                weight *= gamma[t] * c[t, b]
        for s in range(start, stop):
            following = vs[s + 1, b] if s + 1 < stop else v[stop, b]
            advantage[s, b] = rho[s, b] * (r[s, b] + gamma[s] * following - v[s, b])
    return vs, advantage
