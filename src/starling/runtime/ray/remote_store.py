"""Replay that is sharded over several Ray actors; their common limiter is in this process.

Fragments are sent from the actors' nodes to the shards' nodes directly. A batch takes an equal part from every shard
that is ready; a lost shard is skipped until it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from starling import tree
from starling.replay.batching import join
from starling.replay.limiter import Limiter
from starling.replay.mixture import Candidates
from starling.replay.spec import TableSpec
from starling.runtime.ray.messages import OnStored
from starling.runtime.ray.remote_shard import RemoteShard
from starling.runtime.ray.shard import Empty, Holds
from starling.types import Fragment, Keys, NDArray, Sample

AHEAD = 2
"""Batches that are requested concurrently."""
MOST_INSERTING = 64
"""Pending inserts into one shard above which no new fragments are begun."""


@dataclass(eq=False)  # compared by identity
class _Draw:
    """A batch that is being assembled."""

    missing: int  # items
    parts: list[Sample] = field(default_factory=list)


class ShardedStore:
    """Counterpart of `Store` for a sharded replay."""

    def __init__(self, specs: Sequence[TableSpec], num_envs: int) -> None:
        self._specs, self._batch = tuple(specs), specs[0].batch
        self.limiter = Limiter(specs, num_envs)
        self.shards: list[RemoteShard] = []
        self.env_steps = 0
        self._asked: dict[RemoteShard, list[tuple[_Draw, int]]] = {}
        self._unplaced: list[tuple[_Draw, int]] = []
        self._draws = 0  # pending
        self._drawn: deque[Sample] = deque()
        self._turn = 0
        self._inserting: dict[RemoteShard, list[tuple[int, OnStored]]] = {}  # number of envs of every pending fragment
        self._began_with: dict[str, Any] = {}
        self.last_saved: Callable[[], dict[str, Any] | None] = lambda: None  # the state that is on disk

    def attach(self, shards: Sequence[RemoteShard]) -> None:
        self.shards = list(shards)
        for shard in shards:
            shard.ended = self._lost_shard
            self._asked[shard], self._inserting[shard] = [], []

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of items in each table, summed over all shards."""
        held = [shard.holds.sizes for shard in self.shards if shard.holds.sizes]
        return tuple(sum(column) for column in zip(*held, strict=True)) if held else (0,) * len(self._specs)

    def begin(self, num_envs: int) -> bool:
        if max(map(len, self._inserting.values())) > MOST_INSERTING or not self.limiter.may_begin(num_envs):
            return False
        self.limiter.begin(num_envs)
        return True

    def take_back(self, num_envs: int) -> None:
        self.limiter.on_lost(num_envs)

    def abandon(self) -> None:
        self.limiter.abandon()

    def deposit(self, fragment: Empty, buffer: Any, settled: OnStored) -> None:
        """Insert a fragment, given a reference to its arrays, into the shard of its envs."""
        num_envs = len(fragment.env_index)
        shard = next(shard for shard in self.shards if fragment.env_index[0] in shard.env_index)

        def done(steps: int, holds: Holds) -> None:
            self._inserting[shard].remove((num_envs, settled))
            if steps:
                self.env_steps += steps
                self.limiter.on_inserted(steps, num_envs)
            else:
                self.limiter.on_lost(num_envs)  # a duplicate
            settled(steps)

        if shard.insert(fragment, buffer, done):
            self._inserting[shard].append((num_envs, settled))
        else:
            self._lost(num_envs, settled)

    def _lost(self, num_envs: int, settled: OnStored) -> None:
        self.limiter.on_lost(num_envs)
        settled(None)

    def insert(self, fragment: Fragment) -> None:
        raise AssertionError("fragments are deposited in shards, they do not come by here")

    def draw_candidates(self) -> Candidates | None:
        """Return a batch that has arrived, or None, and request more."""
        unplaced, self._unplaced = self._unplaced, []
        for draw, count in unplaced:
            self._place(draw, count)
        while self._draws < AHEAD and not self._unplaced and self._ready() and self.limiter.may_sample(self.sizes):
            self.limiter.on_sampled()
            self._draws += 1
            self._ask(_Draw(self._batch))
        return Candidates({0: self._drawn.popleft()}, {}) if self._drawn else None

    def select(self, candidates: Candidates, distances: Mapping[int, NDArray]) -> Sample:
        return candidates.parts[0]

    def _ready(self) -> list[RemoteShard]:
        return [shard for shard in self.shards if shard.running and min(shard.holds.sizes, default=0) > 0]

    def _ask(self, draw: _Draw) -> None:
        shards = self._ready()
        counts = np.full(len(shards), self._batch // len(shards))
        self._turn += 1
        counts[(self._turn + np.arange(self._batch % len(shards))) % len(shards)] += 1
        for shard, count in zip(shards, counts.tolist(), strict=True):
            if count:
                self._request(shard, draw, count)

    def _place(self, draw: _Draw, count: int) -> None:
        """Request a missing part of a batch from another shard."""
        ready = self._ready()
        if ready:
            self._request(ready[self._turn % len(ready)], draw, count)
        else:
            self._unplaced.append((draw, count))

    def _request(self, shard: RemoteShard, draw: _Draw, count: int) -> None:
        self._asked[shard].append((draw, count))

        def came(sample: Sample | None) -> None:
            self._asked[shard].remove((draw, count))
            if sample is None:
                self._unplaced.append((draw, count))
                return
            draw.parts.append(self._of_all(sample))
            draw.missing -= count
            if not draw.missing:
                self._draws -= 1
                whole = join(draw.parts)
                self._drawn.append(whole if len(draw.parts) > 1 else tree.map(np.array, whole))  # Ray's is read-only

        shard.sample(count, came)

    def _of_all(self, sample: Sample) -> Sample:
        """Convert probabilities and table sizes of one shard to those of all shards, which are sampled equally."""
        sizes = np.array(self.sizes, np.int64)
        parts = max(1, len(self._ready()))
        return replace(sample, probability=sample.probability / parts, table_size=sizes[sample.source])

    def _lost_shard(self, shard: RemoteShard) -> None:
        """Reassign the pending requests of a lost shard; its pending inserts are lost."""
        self._unplaced += self._asked[shard]
        self._asked[shard] = []
        for num_envs, settled in self._inserting[shard]:
            self._lost(num_envs, settled)
        self._inserting[shard] = []

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None:
        if priorities is not None:
            for index, shard in enumerate(self.shards):
                mine = keys.shard == index
                if mine.any():
                    few = Keys(keys.shard[mine], keys.table[mine], keys.slot[mine], keys.generation[mine])
                    shard.reprioritize(few, priorities[mine])
        self.limiter.on_published()

    def metrics(self) -> dict[str, float]:
        counts: dict[str, float] = {}
        for shard in self.shards:
            for name, count in shard.holds.metrics.items():
                counts[f"store/{name}"] = counts.get(f"store/{name}", 0) + count
        return counts

    def get_state(self, with_tables: bool) -> dict[str, Any]:
        """Return the state; a shard that is currently lost contributes its last saved state."""
        if not with_tables:
            return {"env_steps": self.env_steps}
        states = {str(i): shard.get_state() or self.saved_of(i) for i, shard in enumerate(self.shards)}
        return {
            "env_steps": self.env_steps,
            "limiter": self.limiter.get_state(),
            "parts": {key: state for key, state in states.items() if state is not None},
        }

    def saved_of(self, index: int) -> dict[str, Any] | None:
        """Return the last saved state of a shard, or its initial state if this run has not saved any yet."""
        state: dict[str, Any] | None = (self.last_saved() or {}).get("parts", {}).get(str(index))
        return state or self._began_with.get(str(index))

    def set_state(self, state: dict[str, Any]) -> None:
        self.env_steps = state["env_steps"]
        if "parts" in state:
            self.limiter.set_state(state["limiter"])
            self._began_with = dict(state["parts"])
