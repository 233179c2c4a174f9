"""All tables of an agent, or of one of several learners, and their limiter: actors insert, learners sample batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.replay.batching import take_rows
from starling.replay.limiter import Limiter, exact_ratio
from starling.replay.mixture import Candidates, Mixture
from starling.replay.spec import TableSpec
from starling.replay.table import Table
from starling.types import Fragment, Keys, Layout, NDArray, RunLength, Sample, Trajectory

AHEAD_BYTES = 2**16
"""Small batches are drawn several at a time, up to this size, since the fixed cost of a draw dominates for them."""


class Tables(Protocol):
    """What a hub needs of the tables, wherever they are; `Store` is all of this in one process."""

    env_steps: int

    def begin(self, num_envs: int) -> bool:
        """See `Store.begin`."""
        ...

    def insert(self, fragment: Fragment) -> None: ...

    def take_back(self, num_envs: int) -> None: ...

    def abandon(self) -> None: ...

    def draw_candidates(self) -> Candidates | None: ...

    def select(self, candidates: Candidates, distances: Mapping[int, NDArray]) -> Sample: ...

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def get_state(self, with_tables: bool) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class Store:
    """Tables and limiter. Never blocks: if it is too early, `begin` returns False and `sample` returns None."""

    def __init__(
        self,
        specs: Sequence[TableSpec],
        layout: Layout,
        *,
        num_envs: int,
        seed: int,
        priority: Callable[[Trajectory[NDArray]], NDArray | None],
        length: RunLength,  # counted at these tables
        shard: int = 0,
    ) -> None:
        self._batch = specs[0].batch
        self.limiter = Limiter(specs, num_envs)
        tables = [
            Table(spec, layout, num_envs, seed=seed, priority=priority, index=i, shard=shard)
            for i, spec in enumerate(specs)
        ]
        self.mixture = Mixture(tables)
        self._length = length
        self.env_steps = 0  # valid steps inserted so far
        # At most as many batches as the limiter owes; with runtime=inline empty whenever actors may continue.
        self._drawn_ahead: deque[Candidates] = deque()
        self._most_ahead = _most_ahead(specs, layout)

    def begin(self, num_envs: int) -> bool:
        """Ask the limiter whether a fragment of `num_envs` envs may begin now; if so, count it as begun.

        Every True must be followed by `insert` of that fragment, or by `take_back`.
        """
        if not self.limiter.may_begin(num_envs):
            return False
        self.limiter.begin(num_envs)
        return True

    def insert(self, fragment: Fragment) -> None:
        """Copy a fragment into every table; a duplicate changes nothing."""
        steps_before, duplicates_before = self.mixture.steps, self.mixture.duplicates
        self.mixture.insert(fragment)
        if self.mixture.duplicates > duplicates_before:
            return
        fresh = self.mixture.steps - steps_before
        self.env_steps += fresh
        self.limiter.on_inserted(fresh, len(fragment.env_index))

    def take_back(self, num_envs: int) -> None:
        """Take back the credits of fragments, of `num_envs` envs in total, that have begun and will never arrive."""
        self.limiter.on_lost(num_envs)

    def abandon(self) -> None:
        """Take back all credits and batches: the processes that held them are gone."""
        self.limiter.abandon()

    def sample(self) -> Sample | None:
        """Sample one batch from all tables, by share; None until the limiter and every table allow it.

        Candidates of ranked tables are selected at random; see `draw_candidates`.
        """
        candidates = self.draw_candidates()
        return None if candidates is None else self.select(candidates, {})

    def draw_candidates(self) -> Candidates | None:
        """Draw the next batch, which `select` completes; None until the limiter and every table allow it.

        Ranked tables draw more candidates than the batch has items; of all others, the candidates are the batch.
        """
        if not self.limiter.may_sample(self.mixture.sizes):
            return None
        if not self._drawn_ahead:
            ahead = min(self._most_ahead, self.limiter.owed())
            fraction = self._length.progress(self.env_steps, self.limiter.batches).fraction
            candidates = self.mixture.draw_candidates(self._batch * ahead, fraction)
            if candidates is None:
                return None
            self._drawn_ahead.extend([candidates] if ahead == 1 else _split(candidates.parts[0], ahead))
        self.limiter.on_sampled()
        self.limiter.set_sizes(self.mixture.sizes)
        return self._drawn_ahead.popleft()

    def select(self, candidates: Candidates, distances: Mapping[int, NDArray]) -> Sample:
        """Select the batch, given the distances [N] of the candidates of each ranked table."""
        return self.mixture.select(candidates, distances)

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None:
        """Finish a batch that was learned from: apply its new priorities [B], and free its credits.

        Called when the weights that were learned from it are published.
        """
        if priorities is not None:
            self.mixture.reprioritize(keys, priorities)
        self.limiter.on_published()

    def metrics(self) -> dict[str, float]:
        """Metrics of every table: size, fill, and number of dropped items by reason."""
        return {f"store/{name}": count for name, count in self.mixture.metrics().items()}

    def check_valid(self) -> None:
        self.mixture.check_valid()
        self.limiter.check_valid()

    def get_state(self, with_tables: bool) -> dict[str, Any]:
        """State to save; without the tables, a resumed run fills them again before it continues to learn."""
        if not with_tables:
            return {"env_steps": self.env_steps}
        return {
            "env_steps": self.env_steps,
            "limiter": self.limiter.get_state(),
            "tables": self.mixture.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.env_steps = state["env_steps"]
        if "tables" in state:
            self.limiter.set_state(state["limiter"])
            self.mixture.set_state(state["tables"])


def _most_ahead(specs: Sequence[TableSpec], layout: Layout) -> int:
    """Number of batches to draw at once; more than one only if a draw cannot depend on the batch before it."""
    if len(specs) > 1 or specs[0].sampler != "uniform":
        return 1
    step = sum(leaf.nbytes for leaf in tree.leaves((layout.obs, layout.action, layout.extras)))
    return int(np.clip(AHEAD_BYTES // (specs[0].batch * (specs[0].length + 1) * step), 1, 16))


def _split(sample: Sample, parts: int) -> list[Candidates]:
    """Split a sample of one table into `parts` batches of equal size."""
    size = len(sample.keys) // parts
    return [Candidates({0: take_rows(sample, slice(i * size, (i + 1) * size))}, {0: size}) for i in range(parts)]


def shard_envs(num_envs: int, shards: int) -> list[NDArray]:
    """Env indices of every shard, split as evenly as possible, independently of the actors that run them."""
    return np.array_split(np.arange(num_envs), shards)


def shard_specs(specs: Sequence[TableSpec], num_envs: int, shards: int) -> list[tuple[TableSpec, ...]]:
    """Tables of every shard, given the `specs` for all `num_envs` envs together.

    A learner's batch is its part of one batch of all learners. A shard therefore allows more batches per env step of
    its own: `updates_per_step` times the number of all envs over that of its envs.
    """
    if specs[0].batch % shards:
        raise UserError(
            f"a batch of {specs[0].batch} cannot be divided equally among learners={shards}: make it a multiple of"
            f" {shards}"
        )
    if num_envs < shards:
        raise UserError(f"learners={shards} are more than the env.num={num_envs} envs they share")
    return [tuple(_shard(spec, len(mine), num_envs, shards) for spec in specs) for mine in shard_envs(num_envs, shards)]


def _shard(spec: TableSpec, mine: int, num_envs: int, shards: int) -> TableSpec:
    if shards == 1:
        return spec
    ratio = spec.updates_per_step
    return replace(
        spec,
        batch=spec.batch // shards,
        capacity=-(-spec.capacity * mine // num_envs),
        min_size=-(-spec.min_size * mine // num_envs),
        updates_per_step=None if ratio is None else float(exact_ratio(ratio) * num_envs / mine),
    )
