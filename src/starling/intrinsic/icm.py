"""Intrinsic curiosity module (1705.05363): an observation is novel if a forward model did not predict it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from starling import tree
from starling.config.curiosity import ICMConfig
from starling.intrinsic.inverse import InverseModel
from starling.ops.policy import masked_mean
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree


class World(nn.Module):
    """The inverse model, which trains the features, and the forward model, which predicts them."""

    def __init__(self, env: EnvSpec, config: ICMConfig) -> None:
        super().__init__()
        self.inverse = InverseModel("icm", env, config.torso, config.hidden)
        size, actions = self.inverse.size, self.inverse.actions
        self.forward_model = nn.Sequential(
            nn.Linear(size + actions, config.hidden), nn.ReLU(), nn.Linear(config.hidden, size)
        )

    def forward_error(self, before: Tensor, action: Tensor, after: Tensor) -> Tensor:
        """1/2 ||predicted - after||^2 [...] for features before and after an action, [..., F]."""
        taken = functional.one_hot(action, self.inverse.actions).to(before.dtype)
        expected: Tensor = self.forward_model(torch.cat((before, taken), dim=-1))
        return 0.5 * (expected - after).square().sum(-1)


class ICM:
    """The reward is the forward model's error; only the inverse model trains the features.

    The paper's factor eta is left out: it would cancel, since rewards are divided by the std of their return.
    """

    def __init__(self, config: ICMConfig) -> None:
        self.config = config
        self._size = 1  # replaced in `build`

    def build(self, env: EnvSpec) -> World:
        world = World(env, self.config)
        self._size = world.inverse.size
        return world

    def initial_state(self, num_envs: int) -> dict[str, Tensor]:
        """Features of the previous observation, computed with the weights at that time."""
        return {"features": torch.zeros(num_envs, self._size)}

    def reward(self, module: World, seen: Any, state: dict[str, Tensor]) -> Tensor:
        features = module.inverse.encode(seen.obs)
        forward_error = module.forward_error(state["features"], seen.action, features)
        state["features"].copy_(features)
        return forward_error

    def prepare(self, module: World, trajectory: Trajectory[Tensor]) -> None:
        """Do nothing: there are no statistics."""

    def loss(self, module: World, batch: Batch, next_obs: Tree) -> Tensor:
        trajectory, valid = batch.trajectory, batch.trajectory.valid
        obs = tree.map(lambda leaf: leaf[: trajectory.length], trajectory.obs)
        before, after = module.inverse.encode_steps(obs), module.inverse.encode_steps(next_obs)
        inverse = module.inverse.loss(before, after, trajectory.action, valid)
        forward = masked_mean(module.forward_error(before.detach(), trajectory.action, after.detach()), valid)
        return (1.0 - self.config.beta) * inverse + self.config.beta * forward
