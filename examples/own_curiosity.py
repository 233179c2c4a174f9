"""An intrinsic reward of one's own: an observation is new where a small autoencoder cannot restore it.

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
    """Through few numbers and back."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """The squared error [...] at obs [..., size]."""
        error: torch.Tensor = self.layers(obs) - obs
        return error.square().mean(-1)


class Restoration:
    """The five methods that an intrinsic reward has; `config` is its section, what stands under `args` follows."""

    def __init__(self, config: Any, hidden: int) -> None:
        self.hidden = hidden

    def build(self, env: starling.EnvSpec) -> Autoencoder:
        """Its networks: they are part of the model, so they travel and are saved with the policy's weights."""
        return Autoencoder(int(np.prod(env.observation.shape or ())), self.hidden)

    def initial_state(self, num_envs: int) -> dict[str, torch.Tensor]:
        """What it keeps of every env row: nothing."""
        return {}

    def reward(self, module: Autoencoder, seen: Any, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """What B rows earn [B] for having come to see this."""
        return module(seen.obs)

    def prepare(self, module: Autoencoder, steps: starling.Trajectory) -> None:
        """Statistics, once a batch: none."""

    def loss(self, module: Autoencoder, batch: starling.Batch, next_obs: torch.Tensor) -> torch.Tensor:
        """What its optimizer makes smaller; next_obs [T, B, ...]."""
        return masked_mean(module(next_obs), batch.trajectory.valid)
