"""Parts shared by algorithms that learn from replayed transitions: the table and its importance exponent."""

from __future__ import annotations

from collections.abc import Callable

from starling.config.algo.dqn import DQNConfig
from starling.config.algo.sac import SACConfig
from starling.config.algo.transitions import PrioritizedConfig
from starling.replay.spec import TableSpec
from starling.types import Progress


def replay(config: DQNConfig | SACConfig) -> TableSpec:
    """A replay table of `n_step`-step sequences, sampled uniformly or by priority."""
    prioritized = config.prioritized
    return TableSpec(
        name="replay",
        storage="ring",
        length=config.n_step,
        batch=config.batch,
        capacity=config.capacity,
        sampler="prioritized" if prioritized else "uniform",
        priority_exponent=prioritized.alpha if prioritized else 0.0,
        fragment=config.fragment,
        min_size=max(config.learning_starts, config.batch),
        updates_per_step=config.updates_per_step,
        codec=config.codec,
        reads_past_end=False,
    )


def importance_exponent(prioritized: PrioritizedConfig | None) -> Callable[[Progress], float] | None:
    """PER's beta as a function of progress, or None without priorities."""
    return None if prioritized is None else lambda p: prioritized.beta.at(p.env_steps, p.fraction)
