"""What the policies of a family came to of late, as buffers of the model: the learner fills them, evaluation reads.

They travel with the weights, so which policy an evaluator plays follows from the weights alone.
"""

from __future__ import annotations

import torch
from torch import nn

from starling.types import Tensor


class ArmReturns(nn.Module):
    """Moving averages over batches: what finished episodes of every arm returned, and how many of all were its own."""

    weight: Tensor  # [N] how much of `total` is known: 0 before an arm's first episode, then towards 1
    total: Tensor  # [N]
    plays: Tensor  # [N]

    def __init__(self, arms: int, speed: float) -> None:
        super().__init__()
        self._speed = speed
        for name in ("weight", "total", "plays"):
            self.register_buffer(name, torch.zeros(arms))

    @torch.no_grad()
    def update(self, arm: Tensor, returns: Tensor) -> None:
        """Take in the finished episodes of a batch: arms [n], returns [n]. What is old fades with what comes."""
        if len(arm) == 0:
            return
        count = torch.zeros_like(self.plays).index_add_(0, arm, torch.ones_like(returns))
        mean = torch.zeros_like(self.total).index_add_(0, arm, returns) / count.clamp(min=1.0)
        speed = torch.where(count > 0, self._speed, 0.0)
        self.weight.lerp_(torch.ones_like(self.weight), speed)
        self.total.lerp_(mean, speed)
        self.plays.lerp_(count / len(arm), self._speed)

    def best(self) -> Tensor:
        """The arm [] with the largest mean; those never played are left out, and it is the first where none was."""
        return torch.where(self.weight > 0, self.total / self.weight, -torch.inf).argmax()

    def metrics(self) -> dict[str, Tensor]:
        """Of every arm that was played, its mean return and its share of the episodes."""
        share = self.plays / self.plays.sum()
        known = self.weight.nonzero().flatten().tolist()
        means = {f"arm/{i}/return": self.total[i] / self.weight[i] for i in known}
        return {**means, **{f"arm/{i}/share": share[i] for i in known}}
