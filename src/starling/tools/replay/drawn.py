"""Sample items of a replay with the sampler of its run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.experiment.saved_replay.from_checkpoint import SavedReplay
from starling.types import EXTRINSIC, NDArray, Sample, Trajectory


@dataclass(frozen=True)
class DrawnItem:
    """One sampled item."""

    key: str  # table, slot and generation
    priority: float
    probability: float  # in one draw
    age: int  # updates since its oldest step
    total: float  # undiscounted sum of its rewards, as used in learning
    steps: int  # valid ones


@dataclass(frozen=True)
class Drawn:
    """Items, most likely first, and their steps in the same order."""

    items: list[DrawnItem]
    trajectory: Trajectory[NDArray]  # [T, B]


def draw_items(replay: SavedReplay, n: int) -> Drawn:
    """Sample the next `n` items, sorted by probability."""
    mixture = replay.store.mixture
    sample = mixture.sample(n)
    if sample is None:
        lacking = ", ".join(f"{t.spec.name} has {t.size:,} of {t.spec.min_size:,}" for t in mixture.tables)
        raise UserError(f"nothing can be sampled from {replay.run} yet: {lacking} items to begin with")
    order = np.argsort(-sample.probability, kind="stable")
    ages = replay.updates - sample.trajectory.policy_version
    totals = sample.trajectory.rewards[EXTRINSIC].sum(axis=0)
    steps = sample.trajectory.valid.sum(axis=0)
    numbers = zip(_names(replay, sample), _priorities(replay, sample), strict=True)
    items = [
        DrawnItem(key, priority, float(sample.probability[i]), int(ages[i]), float(totals[i]), int(steps[i]))
        for i, (key, priority) in enumerate(numbers)
    ]
    sorted_steps = tree.map_trajectory(sample.trajectory, lambda leaf: leaf[:, order], lambda leaf: leaf[order])
    return Drawn([items[i] for i in order], sorted_steps)


def _names(replay: SavedReplay, sample: Sample) -> list[str]:
    tables, keys = replay.store.mixture.tables, sample.keys
    columns = zip(keys.table.tolist(), keys.slot.tolist(), keys.generation.tolist(), strict=True)
    return [f"{tables[table].spec.name}/{slot}.{generation}" for table, slot, generation in columns]


def _priorities(replay: SavedReplay, sample: Sample) -> list[float]:
    priorities = np.zeros(len(sample.keys))
    for table in replay.store.mixture.tables:
        mine = sample.keys.table == table.index
        priorities[mine] = table.priorities(sample.keys.slot[mine])
    return priorities.tolist()
