"""A network's torso of one's own: waves of many lengths, which tell near numbers apart (2006.10739).

PYTHONPATH=examples starling train examples/own_network.yaml
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn


class Waves(nn.Module):
    """Observations [N, D] to features [N, size]; made with the observation space and `net.torso.args`."""

    def __init__(self, space: spaces.Space[Any], octaves: int = 4, width: int = 32) -> None:
        super().__init__()
        assert isinstance(space, spaces.Box), f"waves are of vectors, not of {space}"
        self.register_buffer("frequency", math.pi * 2.0 ** torch.arange(octaves))
        self.dense = nn.Linear(2 * octaves * math.prod(space.shape), width)
        self.size = width  # every torso says how wide its features are

    def forward(self, obs: Tensor) -> Tensor:
        angle = (obs.flatten(1)[..., None] * self.frequency).flatten(1)  # [N, D octaves]
        return torch.relu(self.dense(torch.cat((angle.sin(), angle.cos()), dim=1)))
