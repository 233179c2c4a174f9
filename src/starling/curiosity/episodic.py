"""Episodic novelty (2002.06038, section 2): an observation is new where nothing like it was seen in its episode."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.config.curiosity import EpisodicConfig
from starling.curiosity.inverse import InverseModel
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree

BLOCK = 64
"""Entries whose smallest is looked for first."""


def smallest(values: Tensor, k: int) -> Tensor:
    """The k smallest [B, k] of values [B, N], in order: all are in the k blocks of least minima, or behind blocks."""
    blocks = values.shape[1] // BLOCK
    if blocks <= 2 * k:
        return values.topk(k, dim=1, largest=False).values
    whole = values[:, : blocks * BLOCK].reshape(-1, blocks, BLOCK)
    best = whole.amin(2).topk(k, dim=1, largest=False, sorted=False).indices  # [B, k]
    inside = whole.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)  # [B, k BLOCK]
    return torch.cat((inside, values[:, blocks * BLOCK :]), dim=1).topk(k, dim=1, largest=False).values


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
            # Entry by entry along the last axis: so a search takes half as long as with the features along it.
            "entries": torch.zeros(rows, config.features, config.capacity),
            "squares": torch.zeros(rows, config.capacity),  # of the entries' lengths
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
        most = int(count.max())
        if most < k:
            return query.new_zeros(len(query))
        near = self._nearest(query, memory, count, most)  # [B, k]
        known = count >= k
        memory["distance"] += torch.where(known, near.mean(1), 0.0)
        memory["queries"] += known
        usual = (memory["distance"] / memory["queries"].clamp(min=1.0)).clamp(min=1e-8)
        relative = (near / usual[:, None] - config.cluster).clamp(min=0.0)
        similarity = (config.kernel / (relative + config.kernel)).sum(1).sqrt() + config.constant
        return torch.where(known & (similarity <= config.most), 1.0 / similarity, 0.0)

    def _nearest(self, query: Tensor, memory: dict[str, Tensor], count: Tensor, most: int) -> Tensor:
        """Squared distances [B, k] to the nearest entries."""
        entries, squares = memory["entries"][:, :, :most], memory["squares"][:, :most]
        # Less the square of the query, which changes no order: |e - q|^2 - |q|^2 = |e|^2 - 2 e q, [B, most].
        distance = torch.baddbmm(squares[:, None], query[:, None], entries, alpha=-2.0)[:, 0]
        if int(count.min()) < most:
            distance.masked_fill_(torch.arange(most, device=query.device) >= count[:, None], torch.inf)
        near = smallest(distance, self.config.neighbours) + query.square().sum(1, keepdim=True)
        near = near.clamp(min=0.0)
        return near.masked_fill(near.isinf(), 0.0)  # only in rows that have too few, whose reward is 0

    def remember(self, embedding: Tensor, memory: dict[str, Tensor]) -> None:
        """Keep embeddings [B, F]; the oldest of an episode make room."""
        rows = torch.arange(len(embedding), device=embedding.device)
        place = memory["count"] % self.config.capacity
        memory["entries"][rows, :, place] = embedding
        memory["squares"][rows, place] = embedding.square().sum(1)
        memory["count"] += 1

    def prepare(self, module: InverseModel, steps: Trajectory[Tensor]) -> None:
        """There are no statistics."""

    def loss(self, module: InverseModel, batch: Batch, next_obs: Tree) -> Tensor:
        steps = batch.trajectory
        before = module.encode_steps(tree.map(lambda leaf: leaf[: steps.length], steps.obs))
        return module.loss(before, module.encode_steps(next_obs), steps.action, steps.valid)
