"""Episodic novelty (2002.06038, section 2): an observation is novel if nothing similar occurred in its episode."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.config.curiosity import EpisodicConfig
from starling.intrinsic.inverse import InverseModel
from starling.ops.devices import on_cpu
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree


class Episodic:
    """The reward decreases with the similarity of an embedding to its nearest neighbors in the episode so far."""

    def __init__(self, config: EpisodicConfig) -> None:
        self.config = config

    def build(self, env: EnvSpec) -> InverseModel:
        """Build the embedding, which sees only the newest frame of a stack: the paper does not stack frames."""
        config = self.config
        return InverseModel("episodic", env, config.torso, config.hidden, config.features, newest=True)

    def initial_state(self, num_envs: int) -> dict[str, Tensor]:
        config = self.config
        return {
            "entries": torch.zeros(num_envs, config.capacity, config.features, dtype=torch.float16),
            "count": torch.zeros(
                num_envs, dtype=torch.int64
            ),  # entries written in this episode, overwritten ones included
            "distance": torch.zeros(num_envs),  # sum of mean squared distances to neighbors, over all episodes
            "queries": torch.zeros(num_envs),  # number of terms in this sum
        }

    def reward(self, module: InverseModel, seen: Any, state: dict[str, Tensor]) -> Tensor:
        embedding = module.encode(seen.obs)
        state["count"].masked_fill_(seen.first, 0)
        novelty = self.novelty(embedding, state)
        self.remember(embedding, state)
        return novelty

    def novelty(self, query: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Novelty [B] of embeddings [B, F]; 0 while an episode has fewer entries than `neighbours`."""
        config = self.config
        query = query.half().float()  # rounded like stored entries, so that a repeated observation has distance 0
        count = state["count"].clamp(max=config.capacity)
        known = count >= config.neighbours
        if not on_cpu(query):
            return self._novelty_on_device(query, state, count, known)
        from starling.intrinsic.nearest import nearest, novelty_of  # loads numba only if needed

        near, reward = query.new_empty(len(query), config.neighbours), torch.empty(len(query))
        nearest(query.numpy(), state["entries"].numpy(), count.numpy(), near.numpy())
        novelty_of(
            near.numpy(),
            known.numpy(),
            state["distance"].numpy(),
            state["queries"].numpy(),
            (config.cluster, config.kernel, config.constant, config.most),
            reward.numpy(),
        )
        return reward

    def _novelty_on_device(self, query: Tensor, state: dict[str, Tensor], count: Tensor, known: Tensor) -> Tensor:
        """`novelty` without the host: `nearest` and `novelty_of` of `intrinsic.nearest` as tensor operations."""
        config = self.config
        exact = "donot_use_mm_for_euclid_dist"  # by matrix products a repeated observation would have a distance
        square = torch.cdist(query[:, None], state["entries"].float(), compute_mode=exact)[
            :, 0
        ].square()  # [B, capacity]
        square = square.masked_fill(torch.arange(config.capacity, device=query.device) >= count[:, None], torch.inf)
        near = square.topk(config.neighbours, dim=1, largest=False).values  # [B, k], inf if the entries are too few
        near = torch.where(known[:, None], near, 0.0)
        state["distance"].add_(near.mean(1))
        state["queries"].add_(known)
        usual = (state["distance"] / state["queries"].clamp(min=1.0)).clamp(min=1e-8)
        apart = (near / usual[:, None] - config.cluster).clamp(min=0.0)
        similarity = (config.kernel / (apart + config.kernel)).sum(1).sqrt() + config.constant
        return torch.where(known & (similarity <= config.most), 1.0 / similarity, 0.0)

    def remember(self, embedding: Tensor, state: dict[str, Tensor]) -> None:
        """Store embeddings [B, F], overwriting the oldest of an episode."""
        env_index = torch.arange(len(embedding), device=embedding.device)
        place = state["count"] % self.config.capacity
        state["entries"][env_index, place] = embedding.half()
        state["count"] += 1

    def prepare(self, module: InverseModel, trajectory: Trajectory[Tensor]) -> None:
        """Do nothing: there are no statistics."""

    def loss(self, module: InverseModel, batch: Batch, next_obs: Tree) -> Tensor:
        trajectory = batch.trajectory
        before = module.encode_steps(tree.map(lambda leaf: leaf[: trajectory.length], trajectory.obs))
        return module.loss(before, module.encode_steps(next_obs), trajectory.action, trajectory.valid)
