"""ICM: predictable steps have low rewards, and features encode what actions control and not the noise."""

import torch
from gymnasium import spaces
from support.intrinsic_inputs import intrinsic_input

from starling.config.curiosity import ICMConfig
from starling.intrinsic.icm import ICM
from starling.types import Batch, EnvSpec, Progress, Trajectory

ENV = EnvSpec("x", spaces.Box(-10, 10, (4,)), spaces.Discrete(3))


def walk(steps, num_envs, seed=0):
    """A point on a circle with 8 positions, moved by action - 1, and two noise dimensions."""
    generator = torch.Generator().manual_seed(seed)
    action = torch.randint(0, 3, (steps, num_envs), generator=generator)
    place = torch.cat([torch.zeros(1, num_envs, dtype=torch.int64), (action - 1).cumsum(0)])
    angle = place * (2 * torch.pi / 8)
    noise = torch.randn(steps + 1, num_envs, 2, generator=generator)
    return torch.cat([angle.cos()[..., None], angle.sin()[..., None], noise], dim=-1), action


def batch_of(obs, action):
    steps, rows = action.shape
    flags = torch.zeros(steps, rows, dtype=torch.bool)
    trajectory = Trajectory(
        obs, torch.zeros(steps + 1, rows, dtype=torch.bool), action, {}, flags, flags, ~flags, {}, {}, torch.zeros(rows)
    )
    return Batch(trajectory, torch.ones(rows), torch.zeros(rows), Progress(), torch.Generator())


def test_icm_learns_the_effect_of_actions_and_ignores_noise():
    torch.manual_seed(0)
    icm = ICM(ICMConfig(hidden=64))
    module = icm.build(ENV)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for step in range(300):
        batch = batch_of(*walk(10, 32, seed=step))
        optimizer.zero_grad()
        icm.loss(module, batch, batch.trajectory.obs[1:]).backward()
        optimizer.step()
    obs, action = walk(10, 64, seed=1000)
    before, after = module.inverse.encode_steps(obs[:-1]), module.inverse.encode_steps(obs[1:])
    guessed = module.inverse.guess(torch.cat((before, after), dim=-1)).argmax(-1)
    assert (guessed == action).float().mean() > 0.95
    expected = module.forward_error(before, action, after).mean()
    wrong = module.forward_error(before, (action + 1) % 3, after).mean()
    assert wrong > 3 * expected


def test_reward_is_the_forward_error_between_two_observations():
    torch.manual_seed(0)
    icm = ICM(ICMConfig())
    module = icm.build(ENV)
    obs, action = walk(3, 2)
    memory, no_flags = icm.initial_state(2), torch.zeros(2, dtype=torch.bool)
    icm.reward(module, intrinsic_input(obs[0], ~no_flags, action[0]), memory)
    for t in range(3):
        found = icm.reward(module, intrinsic_input(obs[t + 1], no_flags, action[t]), memory)
        before, after = module.inverse.encode(obs[t]), module.inverse.encode(obs[t + 1])
        taken = torch.nn.functional.one_hot(action[t], 3).float()
        error = module.forward_model(torch.cat((before, taken), dim=-1)) - after
        torch.testing.assert_close(found, 0.5 * error.square().sum(-1))


def test_forward_loss_does_not_train_the_features():
    icm = ICM(ICMConfig(beta=1.0))  # only the loss of the forward model
    module = icm.build(ENV)
    batch = batch_of(*walk(4, 3))
    icm.loss(module, batch, batch.trajectory.obs[1:]).backward()
    assert all(p.grad is None or not p.grad.any() for p in module.inverse.encoder.parameters())
    assert all(p.grad.any() for p in module.forward_model.parameters())
