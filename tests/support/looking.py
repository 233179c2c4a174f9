"""What env rows see, for intrinsic rewards that look at nothing else."""

import torch

from starling.algos.base import IntrinsicInput


def seen(obs, first=None, action=None):
    """obs [B, ...], first [B], action [B], as arrays, lists or tensors."""
    obs = torch.as_tensor(obs)
    rows = len(obs)
    first = torch.zeros(rows, dtype=torch.bool) if first is None else torch.as_tensor(first)
    ended, arm = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64)
    noise = lambda n: torch.full((rows, n), 0.5)  # noqa: E731
    return IntrinsicInput(obs, first, ended, action, torch.zeros(rows), torch.arange(rows), True, arm, noise)
