"""A user-defined torso: Fourier features of many frequencies, which distinguish close values (2006.10739).

PYTHONPATH=examples starling train examples/own_network.yaml
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn


class FourierFeatures(nn.Module):
    """Maps observations [N, D] to features [N, size]; created with the observation space and `net.torso.args`."""

    def __init__(self, space: spaces.Space[Any], octaves: int = 4, width: int = 32) -> None:
        super().__init__()
        assert isinstance(space, spaces.Box), f"Fourier features need a Box, not {space}"
        self.register_buffer("frequency", math.pi * 2.0 ** torch.arange(octaves))
        self.dense = nn.Linear(2 * octaves * math.prod(space.shape), width)
        self.size = width  # every torso declares the size of its features

    def forward(self, obs: Tensor) -> Tensor:
        angle = (obs.flatten(1)[..., None] * self.frequency).flatten(1)  # [N, D octaves]
        return torch.relu(self.dense(torch.cat((angle.sin(), angle.cos()), dim=1)))
