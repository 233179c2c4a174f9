"""Features trained by an inverse model, which predicts the action between two observations."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from starling import tree
from starling.config.parts import TorsoConfig
from starling.errors import UserError
from starling.intrinsic.views import Newest, newest_space
from starling.nets.torsos import build_torso
from starling.ops.policy import masked_mean
from starling.types import EnvSpec, Tensor, Tree


class InverseModel(nn.Module):
    """Encoder of observations, and a classifier of the action that leads from one to the next (1705.05363)."""

    def __init__(
        self,
        kind: str,
        env: EnvSpec,
        torso: TorsoConfig,
        hidden: int,
        features: int | None = None,
        *,
        newest: bool = False,  # use only the newest frame of a stack
    ) -> None:
        super().__init__()
        if not isinstance(env.action, spaces.Discrete):
            raise UserError(f"curiosity {kind} needs a Discrete action space; {env.id} has {env.action}: use kind: rnd")
        self.newest = Newest(env) if newest else None
        built: Any = build_torso(newest_space(env) if newest else env.observation, torso)
        self.actions = int(env.action.n)
        self.size: int = built.size if features is None else features
        self.encoder = built if features is None else nn.Sequential(built, nn.Linear(built.size, features))
        self.guess = nn.Sequential(nn.Linear(2 * self.size, hidden), nn.ReLU(), nn.Linear(hidden, self.actions))

    def encode(self, obs: Tree) -> Tensor:
        """Features [N, F] of obs [N, ...]."""
        features: Tensor = self.encoder(obs if self.newest is None else self.newest(obs, lead=1))
        return features

    def encode_steps(self, obs: Tree) -> Tensor:
        """Features [T, B, F] of obs [T, B, ...]."""
        lead = tree.leaves(obs)[0].shape[:2]
        return self.encode(tree.map(lambda leaf: leaf.flatten(0, 1), obs)).view(*lead, self.size)

    def loss(self, before: Tensor, after: Tensor, action: Tensor, valid: Tensor) -> Tensor:
        """Cross-entropy of actions [T, B] given features before and after [T, B, F], a mean over valid [T, B] steps."""
        logits = self.guess(torch.cat((before, after), dim=-1))  # [T, B, A]
        error = functional.cross_entropy(logits.flatten(0, 1), action.flatten(), reduction="none")
        return masked_mean(error.view(valid.shape), valid)
