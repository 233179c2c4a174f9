"""RND: what is seen often is no longer novel; observations are normalized."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.intrinsic_inputs import intrinsic_input

from starling.config.curiosity import RNDConfig
from starling.intrinsic.rnd import RND
from starling.types import Batch, EnvSpec, Progress, StackSpec, Trajectory

ROWS, STEPS = 4, 5
VECTOR = EnvSpec("x", spaces.Box(-10, 10, (3,)), spaces.Discrete(2))


def batch_of(obs, valid=None):
    """Steps [T, B] with observations `obs` [T+1, B, ...]."""
    steps, rows = obs.shape[0] - 1, obs.shape[1]
    valid = torch.ones(steps, rows, dtype=torch.bool) if valid is None else valid
    flags, numbers = torch.zeros(steps, rows, dtype=torch.bool), torch.zeros(steps, rows)
    first = torch.zeros(steps + 1, rows, dtype=torch.bool)
    action = torch.zeros(steps, rows, dtype=torch.int64)
    trajectory = Trajectory(
        obs, first, action, {"extrinsic": numbers}, flags, flags, valid, {}, {}, torch.zeros(rows, dtype=torch.int64)
    )
    return Batch(trajectory, torch.ones(rows), torch.zeros(rows), Progress(), torch.Generator().manual_seed(0))


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reward_of(rnd, module, obs):
    return rnd.reward(module, intrinsic_input(obs), rnd.initial_state(len(obs))).detach()


def test_novelty_falls_for_observations_that_are_trained_on():
    torch.manual_seed(0)
    rnd = RND(RNDConfig(warm_up=0))
    module = rnd.build(VECTOR)
    known, other = noise(ROWS, 3), noise(ROWS, 3, seed=1)
    batch = batch_of(known.expand(STEPS + 1, ROWS, 3))
    rnd.prepare(module, batch.trajectory)
    before = reward_of(rnd, module, known), reward_of(rnd, module, other)
    optimizer = torch.optim.Adam(module.predictor.parameters(), lr=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        rnd.loss(module, batch, batch.trajectory.obs[1:]).backward()
        optimizer.step()
    assert (reward_of(rnd, module, known) < 0.02 * before[0]).all()
    assert reward_of(rnd, module, other).mean() > 0.2 * before[1].mean()
    assert all(parameter.grad is None for parameter in module.random.parameters())


def test_error_is_computed_on_normalized_and_clipped_observations():
    torch.manual_seed(0)
    rnd = RND(RNDConfig(warm_up=0, clip=1.5))
    module = rnd.build(VECTOR)
    obs = 100 + 7 * noise(STEPS + 1, ROWS, 3)
    valid = torch.ones(STEPS, ROWS, dtype=torch.bool)
    valid[2, 1] = False
    obs[3, 1] = 1e6  # follows the invalid step
    rnd.prepare(module, batch_of(obs, valid).trajectory)
    kept = obs[1:][valid]
    scaled = ((obs[0] - kept.mean(0)) / kept.std(0, correction=0)).clamp(-1.5, 1.5)
    expected = (module.predictor(scaled) - module.random(scaled)).square().mean(-1)
    torch.testing.assert_close(reward_of(rnd, module, obs[0]), expected.detach(), rtol=1e-3, atol=1e-5)


def test_reward_is_0_until_warmed_up():
    rnd = RND(RNDConfig(warm_up=2 * STEPS * ROWS))
    module = rnd.build(VECTOR)
    steps = batch_of(noise(STEPS + 1, ROWS, 3)).trajectory
    rnd.prepare(module, steps)
    assert (reward_of(rnd, module, noise(ROWS, 3)) == 0).all()
    rnd.prepare(module, steps)
    assert (reward_of(rnd, module, noise(ROWS, 3)) > 0).all()


def test_only_the_newest_frame_of_a_stack_counts():
    env = EnvSpec("x", spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(2), stack=StackSpec("", 0, 4))
    rnd = RND(RNDConfig(warm_up=0))
    module = rnd.build(env)
    obs = torch.randint(0, 256, (STEPS + 1, ROWS, 4, 36, 36), dtype=torch.uint8)
    rnd.prepare(module, batch_of(obs).trajectory)
    changed = obs[0].clone()
    changed[:, :3] = 0
    torch.testing.assert_close(reward_of(rnd, module, changed), reward_of(rnd, module, obs[0]))
    changed[:, 3] = 0
    assert (reward_of(rnd, module, changed) != reward_of(rnd, module, obs[0])).all()


def test_loss_uses_a_random_share_of_the_steps():
    rnd = RND(RNDConfig(warm_up=0, share=0.25))
    module = rnd.build(VECTOR)
    obs = noise(STEPS + 1, 100, 3)
    batch = batch_of(obs)
    rnd.prepare(module, batch.trajectory)
    loss = rnd.loss(module, batch, obs[1:]).item()
    drawn = torch.rand(STEPS, 100, generator=torch.Generator().manual_seed(0)) < 0.25
    errors = reward_of(rnd, module, obs[1:].flatten(0, 1)).view(STEPS, 100)
    assert loss == pytest.approx(errors[drawn].mean().item(), rel=1e-4)
    assert loss != pytest.approx(errors.mean().item(), rel=1e-4)
