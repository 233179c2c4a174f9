"""Observations as vectors from a fixed encoding, for distances between states."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.nets.encoders import is_image
from starling.nets.torsos import Torso, space_leaves
from starling.types import Tensor, Tree

EMBEDDED = 64
"""Number of features of the random embedding."""


class StateFeatures(nn.Module):
    """All leaves concatenated, [..., F]; if one is an image, a fixed random projection to `EMBEDDED` features."""

    embedding: Tensor | None  # [size, EMBEDDED]

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.joined = Torso(space, None, (), "relu", "none")
        embedding = None
        if any(is_image(leaf) for _, leaf in space_leaves(space)):
            random = torch.Generator().manual_seed(0)  # the same in every process and after every resume
            embedding = torch.randn(self.joined.size, EMBEDDED, generator=random) / math.sqrt(EMBEDDED)
        self.register_buffer("embedding", embedding)

    @torch.no_grad()
    def forward(self, obs: Tree, shape: torch.Size) -> Tensor:
        """Features [*shape, F] of observations with leading axes `shape`."""
        flat = tree.map(lambda leaf: leaf.flatten(0, len(shape) - 1), obs)
        x: Tensor = self.joined(flat)
        return (x if self.embedding is None else x @ self.embedding).view(*shape, -1)
