"""NGU's novelty (2002.06038, eq. 1): episodic novelty, modulated by lifelong novelty (RND)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from starling import tree
from starling.config.curiosity import NoveltyConfig
from starling.intrinsic.episodic import Episodic
from starling.intrinsic.inverse import InverseModel
from starling.intrinsic.rnd import RND, Distillation
from starling.ops.devices import select_rows
from starling.ops.policy import masked_mean
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree

SPEED = 0.01
"""Rate of the moving averages of prediction errors, per update."""


class NoveltyModel(nn.Module):
    """The lifelong novelty module (RND), the embedding, and running moments of RND's errors."""

    error: Tensor  # [3]

    def __init__(self, lifelong: Distillation, embedding: InverseModel) -> None:
        super().__init__()
        self.lifelong, self.embedding = lifelong, embedding
        # Moving averages of (1, error, error^2), all starting at 0; the first one corrects the bias of the other two.
        self.register_buffer("error", torch.zeros(3))

    def modulation(self, error: Tensor) -> Tensor:
        """Lifelong novelty modulator [B]: 1 + (error - mean) / std; 1 until statistics have warmed up."""
        usual = self.error / self.error[0].clamp(min=1e-12)
        mean, square = usual[1], usual[2]
        unusual = 1.0 + (error - mean) / (square - mean.square()).clamp(min=1e-12).sqrt()
        return torch.where((self.error[0] > 0) & self.lifelong.warm, unusual, 1.0)

    @torch.no_grad()
    def update(self, error: Tensor, mask: Tensor | None = None) -> None:
        """Update the moving averages with errors [n], all or where `mask` [n] is True.

        They forget the huge errors of the untrained predictor.
        """
        error = error.to(self.error)  # bfloat16 under mixed precision
        terms = torch.stack([torch.ones_like(error), error, error.square()])
        means = terms.mean(1) if mask is None else torch.stack([masked_mean(term, mask) for term in terms])
        self.error.lerp_(means, SPEED)


class Novelty:
    """Curiosity whose reward is episodic novelty * min(max(alpha, 1), L), with the lifelong modulator alpha."""

    def __init__(self, config: NoveltyConfig) -> None:
        self.config = config
        self._lifelong, self._within = RND(config.lifelong), Episodic(config.within)

    def build(self, env: EnvSpec) -> NoveltyModel:
        return NoveltyModel(self._lifelong.build(env), self._within.build(env))

    def initial_state(self, num_envs: int) -> dict[str, Tensor]:
        return self._within.initial_state(num_envs)

    def reward(self, module: NoveltyModel, seen: Any, state: dict[str, Tensor]) -> Tensor:
        novelty = self._within.reward(module.embedding, seen, state)
        return novelty * module.modulation(module.lifelong(seen.obs)).clamp(1.0, self.config.limit)

    def prepare(self, module: NoveltyModel, trajectory: Trajectory[Tensor]) -> None:
        self._lifelong.prepare(module.lifelong, trajectory)
        after = tree.map(lambda leaf: leaf[1:].flatten(0, 1), trajectory.obs)
        rows, mask = select_rows(after, trajectory.valid.flatten())
        module.update(module.lifelong(rows), mask)

    def loss(self, module: NoveltyModel, batch: Batch, next_obs: Tree) -> Tensor:
        """RND's prediction error plus the cross-entropy of the inverse model, which have no parameters in common."""
        lifelong = self._lifelong.loss(module.lifelong, batch, next_obs)
        return lifelong + self._within.loss(module.embedding, batch, next_obs)
