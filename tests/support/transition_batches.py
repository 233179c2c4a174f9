"""n-step transitions with every kind of episode end, as DQN and SAC sample them from replay."""

import numpy as np
import torch

from starling.types import Batch, Progress, Trajectory

STEPS = {"full": 3, "terminated": 2, "truncated": 2, "terminated at the last step": 3, "one step": 1, "begins": 3}
"""Kinds of transitions of up to 3 steps -> number of valid steps."""


def make_transitions(actions, length, seed=0, intrinsic=()):
    """One transition of each kind, with rewards of size 0.1 to 5; the padding repeats the final observation.

    The padding also has rewards, which a loss must ignore; `intrinsic` names further reward streams.
    """
    random = torch.Generator().manual_seed(seed)
    taken = torch.tensor(list(STEPS.values())).clamp(max=length)
    rows, step, kinds = len(taken), torch.arange(length + 1)[:, None], np.array(list(STEPS))
    obs = torch.randn(length + 1, rows, 5, generator=random)
    obs = obs.gather(0, torch.minimum(step, taken)[..., None].expand(-1, -1, 5))
    valid, ends = step[:-1] < taken, (step[:-1] == taken - 1).numpy()
    box = 2.0 * torch.rand(length, rows, 2, generator=random) - 1.0
    choice = torch.randint(3, (length, rows), generator=random)
    first = torch.zeros(length + 1, rows, dtype=torch.bool)
    first[0, list(STEPS).index("begins")] = True
    sizes = torch.logspace(-1.0, 0.7, rows)
    steps = Trajectory(
        obs=obs,
        first=first,
        action=box * valid[..., None] if actions == "box" else choice * valid,
        rewards={name: sizes * torch.randn(length, rows, generator=random) for name in ("extrinsic", *intrinsic)},
        terminated=torch.from_numpy(ends & np.char.startswith(kinds, "terminated")),
        truncated=torch.from_numpy(ends & np.isin(kinds, ["truncated", "one step"])),
        valid=valid,
        extras={
            "entropy": torch.randn(length + 1, rows, generator=random),
            "mu": torch.rand(length + 1, rows, generator=torch.Generator().manual_seed(seed)).clamp(min=0.1),
        },
        carry={},
        policy_version=torch.zeros(rows, dtype=torch.int64),
    )
    weight = torch.linspace(0.2, 1.0, rows)[torch.randperm(rows, generator=random)]
    return Batch(steps, weight, torch.zeros(rows, dtype=torch.int64), Progress(), torch.Generator().manual_seed(7))
