"""Random network distillation (1810.12894): novelty is the error of predicting a fixed random network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from starling import tree
from starling.config.curiosity import RNDConfig
from starling.config.parts import TorsoConfig
from starling.intrinsic.views import Newest, as_floats, boxes, newest_space
from starling.nets.layers import orthogonal
from starling.nets.normalizers import Moments
from starling.nets.torsos import build_torso
from starling.ops.policy import masked_mean
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree


class Distillation(nn.Module):
    """The random network, its predictor, and statistics that normalize their observations."""

    def __init__(self, env: EnvSpec, config: RNDConfig) -> None:
        super().__init__()
        space = as_floats(newest_space(env))
        self.newest, self._clip, self._warm_up = Newest(env), config.clip, config.warm_up
        self.moments = nn.ModuleList(Moments(shape) for shape in boxes(space).values())
        self._boxes = list(boxes(space))
        self.random = _features(space, config.torso, config.features).requires_grad_(False)
        self.predictor = _features(space, config.torso, config.features)

    def forward(self, obs: Tree) -> Tensor:
        """Squared prediction error [N] at obs [N, ...], a mean over features."""
        seen = self._normalized(self.newest(obs, lead=1))
        error: Tensor = self.predictor(seen) - self.random(seen).detach()  # [N, F]
        return error.square().mean(-1)

    @torch.no_grad()
    def update(self, obs: Tree, valid: Tensor) -> None:
        """Update the statistics with the valid [T, B] steps of obs [T, B, ...]."""
        leaves = dict(tree.items(self.newest(obs, lead=2)))
        for path, moments in zip(self._boxes, self._all_moments, strict=True):
            moments.update(leaves[path], valid)

    @property
    def warm(self) -> Tensor:
        """True after `warm_up` observations, when normalization is reliable; bool []."""
        counts = [moments.count for moments in self._all_moments]
        return counts[0] >= self._warm_up if counts else torch.tensor(True)

    @property
    def _all_moments(self) -> list[Moments]:
        return [moments for moments in self.moments if isinstance(moments, Moments)]

    def _normalized(self, obs: Tree) -> Tree:
        known = dict(zip(self._boxes, self._all_moments, strict=True))

        def scaled(path: str, leaf: Tensor) -> Tensor:
            if path not in known:
                return leaf
            mean, std = known[path].mean_and_std()
            return ((leaf - mean) / std).clamp_(-self._clip, self._clip)

        parts = iter([scaled(path, leaf) for path, leaf in tree.items(obs)])
        return tree.map(lambda _: next(parts), obs)


def _features(space: Any, config: TorsoConfig, size: int) -> nn.Module:
    torso: Any = build_torso(space, config)
    network = nn.Sequential(torso, nn.Linear(torso.size, size))
    orthogonal(network)
    return network


class RND:
    """The reward of a step is the predictor's error at the observation after it."""

    def __init__(self, config: RNDConfig) -> None:
        self.config = config

    def build(self, env: EnvSpec) -> Distillation:
        return Distillation(env, self.config)

    def initial_state(self, num_envs: int) -> dict[str, Tensor]:
        return {}

    def reward(self, module: Distillation, seen: Any, state: dict[str, Tensor]) -> Tensor:
        error: Tensor = module(seen.obs)
        return error * module.warm

    def prepare(self, module: Distillation, trajectory: Trajectory[Tensor]) -> None:
        module.update(tree.map(lambda leaf: leaf[1:], trajectory.obs), trajectory.valid)

    def loss(self, module: Distillation, batch: Batch, next_obs: Tree) -> Tensor:
        """Mean prediction error of a random share of the valid steps []."""
        valid = batch.trajectory.valid
        error = module(tree.map(lambda leaf: leaf.flatten(0, 1), next_obs)).view(valid.shape)
        if self.config.share < 1:
            drawn = torch.rand(valid.shape, generator=batch.generator, device=valid.device)
            valid = valid & (drawn < self.config.share)
        return masked_mean(error, valid)
