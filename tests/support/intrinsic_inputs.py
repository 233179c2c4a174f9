"""Inputs of intrinsic rewards that depend on observations alone."""

import torch

from starling.algos.base import IntrinsicInput


def intrinsic_input(obs, first=None, action=None):
    """An `IntrinsicInput` from obs [B, ...], first [B], and action [B] as arrays, lists, or tensors."""
    obs = torch.as_tensor(obs)
    num_envs = len(obs)
    first = torch.zeros(num_envs, dtype=torch.bool) if first is None else torch.as_tensor(first)
    ended, arm = torch.zeros(num_envs, dtype=torch.bool), torch.zeros(num_envs, dtype=torch.int64)
    noise = lambda n: torch.full((num_envs, n), 0.5)  # noqa: E731
    return IntrinsicInput(
        obs=obs,
        first=first,
        ended=ended,
        begins=first.nonzero().flatten(),
        ends=ended.nonzero().flatten(),
        action=action,
        reward=torch.zeros(num_envs),
        env_index=torch.arange(num_envs),
        explore=True,
        arm=arm,
        noise=noise,
    )
