"""Episodic novelty (2002.06038, section 2): an observation is new where nothing like it was seen in its episode."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.config.curiosity import EpisodicConfig
from starling.curiosity.inverse import InverseModel
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree


class Episodic:
    """The reward falls with the similarity of an embedding to its nearest neighbours in the episode so far."""

    def __init__(self, config: EpisodicConfig) -> None:
        self.config = config

    def build(self, env: EnvSpec) -> InverseModel:
        config = self.config
        return InverseModel("episodic", env, config.torso, config.hidden, config.features)

    def memory(self, rows: int) -> dict[str, Tensor]:
        config = self.config
        return {
            "entries": torch.zeros(rows, config.capacity, config.features),
            "count": torch.zeros(rows, dtype=torch.int64),  # entries written in this episode, also those overwritten
            "distance": torch.zeros(rows),  # sum of the distances to neighbours, over all episodes
            "queries": torch.zeros(rows),  # that it is the sum of
        }

    def reward(self, module: InverseModel, seen: Any, memory: dict[str, Tensor]) -> Tensor:
        embedding = module.encode(seen.obs)
        memory["count"].masked_fill_(seen.first, 0)
        novelty = self.novelty(embedding, memory)
        self.remember(embedding, memory)
        return novelty

    def novelty(self, query: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """How new embeddings [B, F] are [B]; 0 while an episode has fewer entries than neighbours are wanted."""
        config = self.config
        count, k = memory["count"].clamp(max=config.capacity), config.neighbours
        near = self._nearest(query, memory, count)  # [B, k]
        known = count >= k
        memory["distance"] += torch.where(known, near.mean(1), 0.0)
        memory["queries"] += known
        usual = (memory["distance"] / memory["queries"].clamp(min=1.0)).clamp(min=1e-8)
        relative = (near / usual[:, None] - config.cluster).clamp(min=0.0)
        similarity = (config.kernel / (relative + config.kernel)).sum(1).sqrt() + config.constant
        return torch.where(known & (similarity <= config.most), 1.0 / similarity, 0.0)

    def _nearest(self, query: Tensor, memory: dict[str, Tensor], count: Tensor) -> Tensor:
        """Squared distances [B, k] to the nearest entries; 0 in rows that have fewer, whose reward is 0."""
        if query.device.type == "cpu":
            from starling.curiosity.nearest import nearest  # numba is loaded only where something is searched for

            near = query.new_empty(len(query), self.config.neighbours)
            nearest(query.numpy(), memory["entries"].numpy(), count.numpy(), near.numpy())
        else:
            distance = torch.cdist(query[:, None], memory["entries"])[:, 0].square()  # [B, capacity]
            distance.masked_fill_(torch.arange(distance.shape[1], device=query.device) >= count[:, None], torch.inf)
            near = distance.topk(self.config.neighbours, dim=1, largest=False).values
        return near.masked_fill(near.isinf(), 0.0)

    def remember(self, embedding: Tensor, memory: dict[str, Tensor]) -> None:
        """Keep embeddings [B, F]; the oldest of an episode make room."""
        rows = torch.arange(len(embedding), device=embedding.device)
        place = memory["count"] % self.config.capacity
        memory["entries"][rows, place] = embedding
        memory["count"] += 1

    def prepare(self, module: InverseModel, steps: Trajectory[Tensor]) -> None:
        """There are no statistics."""

    def loss(self, module: InverseModel, batch: Batch, next_obs: Tree) -> Tensor:
        steps = batch.trajectory
        before = module.encode_steps(tree.map(lambda leaf: leaf[: steps.length], steps.obs))
        return module.loss(before, module.encode_steps(next_obs), steps.action, steps.valid)
