"""Episodic novelty (2002.06038, section 2): an observation is novel if nothing similar occurred in its episode."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.config.curiosity import EpisodicConfig
from starling.intrinsic.inverse import InverseModel
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
        from starling.intrinsic.nearest import novelty_of  # loads numba only if needed

        config = self.config
        count = state["count"].clamp(max=config.capacity)
        near, reward = self._nearest(query, state, count).cpu(), torch.empty(len(query))
        distance, queries = state["distance"].cpu(), state["queries"].cpu()  # not copied if on the CPU
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
            state["distance"].copy_(distance), state["queries"].copy_(queries)
        return reward.to(query.device)

    def _nearest(self, query: Tensor, state: dict[str, Tensor], count: Tensor) -> Tensor:
        """Squared distances [B, k] to the nearest entries, filled up with inf."""
        query = query.half().float()  # rounded like stored entries, so that a repeated observation has distance 0
        if query.device.type == "cpu":
            from starling.intrinsic.nearest import nearest

            near = query.new_empty(len(query), self.config.neighbours)
            nearest(query.numpy(), state["entries"].numpy(), count.numpy(), near.numpy())
            return near
        distance = torch.cdist(query[:, None], state["entries"].float())[:, 0].square()  # [B, capacity]
        distance.masked_fill_(torch.arange(distance.shape[1], device=query.device) >= count[:, None], torch.inf)
        return distance.topk(self.config.neighbours, dim=1, largest=False).values

    def remember(self, embedding: Tensor, state: dict[str, Tensor]) -> None:
        """Store embeddings [B, F], overwriting the oldest of an episode."""
        env_index = torch.arange(len(embedding), device=embedding.device)
        place = state["count"] % self.config.capacity
        state["entries"][env_index, place] = embedding.half()
        state["count"] += 1

    def prepare(self, module: InverseModel, steps: Trajectory[Tensor]) -> None:
        """Do nothing: there are no statistics."""

    def loss(self, module: InverseModel, batch: Batch, next_obs: Tree) -> Tensor:
        steps = batch.trajectory
        before = module.encode_steps(tree.map(lambda leaf: leaf[: steps.length], steps.obs))
        return module.loss(before, module.encode_steps(next_obs), steps.action, steps.valid)
