"""Episodic novelty (2002.06038, section 2): an observation is new where nothing like it was seen in its episode."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.config.curiosity import EpisodicConfig
from starling.intrinsic.inverse import InverseModel
from starling.types import Batch, EnvSpec, Tensor, Trajectory, Tree


class Episodic:
    """The reward falls with the similarity of an embedding to its nearest neighbours in the episode so far."""

    def __init__(self, config: EpisodicConfig) -> None:
        self.config = config

    def build(self, env: EnvSpec) -> InverseModel:
        """The embedding sees the newest frame of a stack alone: the paper has no stacks."""
        config = self.config
        return InverseModel("episodic", env, config.torso, config.hidden, config.features, newest=True)

    def memory(self, rows: int) -> dict[str, Tensor]:
        config = self.config
        return {
            "entries": torch.zeros(rows, config.capacity, config.features, dtype=torch.float16),
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
        from starling.intrinsic.nearest import novelty_of  # numba is loaded only where something is looked for

        config = self.config
        count = memory["count"].clamp(max=config.capacity)
        near, reward = self._nearest(query, memory, count).cpu(), torch.empty(len(query))
        distance, queries = memory["distance"].cpu(), memory["queries"].cpu()  # themselves, where they are there
        known = (count >= config.neighbours).cpu()
        novelty_of(
            near.numpy(),
            known.numpy(),
            distance.numpy(),
            queries.numpy(),
            (config.cluster, config.kernel, config.constant, config.most),
            reward.numpy(),
        )
        if query.device.type != "cpu":
            memory["distance"].copy_(distance), memory["queries"].copy_(queries)
        return reward.to(query.device)

    def _nearest(self, query: Tensor, memory: dict[str, Tensor], count: Tensor) -> Tensor:
        """Squared distances [B, k] to the nearest entries; inf where there are fewer."""
        query = query.half().float()  # as it will be remembered: what is seen again has a distance of 0
        if query.device.type == "cpu":
            from starling.intrinsic.nearest import nearest

            near = query.new_empty(len(query), self.config.neighbours)
            nearest(query.numpy(), memory["entries"].numpy(), count.numpy(), near.numpy())
            return near
        distance = torch.cdist(query[:, None], memory["entries"].float())[:, 0].square()  # [B, capacity]
        distance.masked_fill_(torch.arange(distance.shape[1], device=query.device) >= count[:, None], torch.inf)
        return distance.topk(self.config.neighbours, dim=1, largest=False).values

    def remember(self, embedding: Tensor, memory: dict[str, Tensor]) -> None:
        """Keep embeddings [B, F]; the oldest of an episode make room."""
        rows = torch.arange(len(embedding), device=embedding.device)
        place = memory["count"] % self.config.capacity
        memory["entries"][rows, place] = embedding.half()
        memory["count"] += 1

    def prepare(self, module: InverseModel, steps: Trajectory[Tensor]) -> None:
        """There are no statistics."""

    def loss(self, module: InverseModel, batch: Batch, next_obs: Tree) -> Tensor:
        steps = batch.trajectory
        before = module.encode_steps(tree.map(lambda leaf: leaf[: steps.length], steps.obs))
        return module.loss(before, module.encode_steps(next_obs), steps.action, steps.valid)
