"""A user-defined intrinsic reward: an observation is novel if a small autoencoder cannot reconstruct it.

PYTHONPATH=examples starling train examples/own_curiosity.yaml
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import starling
from starling.ops.policy import masked_mean


class Autoencoder(nn.Module):
    """An autoencoder with one small hidden layer."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Squared reconstruction error [...] for obs [..., size]."""
        error: torch.Tensor = self.layers(obs) - obs
        return error.square().mean(-1)


class Reconstruction:
    """The five methods of an intrinsic reward.

    Args:
        config: The reward's section of the configuration.
        hidden: From `args` in that section, as any further parameters.
    """

    def __init__(self, config: Any, hidden: int) -> None:
        self.hidden = hidden

    def build(self, env: starling.EnvSpec) -> Autoencoder:
        """Build the networks. They are part of the model: sent to actors and saved with the policy's weights."""
        return Autoencoder(int(np.prod(env.observation.shape or ())), self.hidden)

    def initial_state(self, num_envs: int) -> dict[str, torch.Tensor]:
        """The state per env: none here."""
        return {}

    def reward(self, module: Autoencoder, seen: Any, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """Intrinsic rewards [B] for the current observations of B envs."""
        return module(seen.obs)

    def prepare(self, module: Autoencoder, trajectory: starling.Trajectory) -> None:
        """Update statistics, once per batch: none here."""

    def loss(self, module: Autoencoder, batch: starling.Batch, next_obs: torch.Tensor) -> torch.Tensor:
        """The scalar loss for the reward's optimizer; next_obs is [T, B, ...]."""
        return masked_mean(module(next_obs), batch.trajectory.valid)
