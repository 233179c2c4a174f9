"""A replay table or queue: fragments are inserted, batches of items are sampled; no call blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from starling import tree
from starling.errors import UserError, require, to_count
from starling.replay import samplers
from starling.replay.batching import choose, take_rows
from starling.replay.ring import Ring
from starling.replay.slots import Slots
from starling.replay.spec import TableSpec
from starling.replay.storage import Storage
from starling.types import Fragment, Keys, Layout, NDArray, Sample, Trajectory

Priority = Callable[[Trajectory[NDArray]], NDArray | None]

COUNTERS = ("inserted", "overwritten", "full", "evicted", "stale", "duplicate", "broken")
"""inserted: items added; overwritten (ring) and full (slots): items removed to make room; evicted: items dropped
otherwise; stale: keys of items that no longer exist; duplicate: fragments that had arrived before; broken: fragments
that did not continue the previous one of their env."""


def _check_slots(saved: NDArray, num_slots: int) -> None:
    """Reject saved slots outside the table: the code that copies steps does not check bounds."""
    if saved.ndim != 1 or saved.dtype.kind not in "iu":
        raise ValueError("saved slots are not integers")
    if len(saved) and not (saved.min() >= 0 and saved.max() < num_slots):
        raise ValueError(f"a saved slot is outside [0, {num_slots:,})")


class Table:
    """Storage and sampler of one `TableSpec`, for `num_envs` envs."""

    def __init__(
        self,
        spec: TableSpec,
        layout: Layout,
        num_envs: int,
        seed: int,
        priority: Priority | None = None,
        index: int = 0,
        shard: int = 0,
    ) -> None:
        if spec.storage == "ring" and spec.sampler == "fifo":
            raise UserError(f"table {spec.name!r}: a ring cannot be read as a queue; fifo needs storage slots")
        self.spec, self.index, self.shard = spec, index, shard
        self._layout = layout
        self._storage: Storage = Ring(spec, layout, num_envs) if spec.storage == "ring" else Slots(spec, layout)
        self._sampler = samplers.build(spec, self._storage.slots)
        self._ranked = self._sampler if isinstance(self._sampler, samplers.Ranked) else None
        self._takes_priorities = samplers.takes_priorities(spec)
        self._priority = priority if self._takes_priorities else None
        self._rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, shard, index])))
        self._sequence: dict[int, int] = {}  # actor id -> sequence number of its last fragment
        self._steps = 0
        self._counters = dict.fromkeys(COUNTERS, 0)

    @property
    def size(self) -> int:
        """Number of items that can be sampled."""
        return self._sampler.size

    @property
    def steps(self) -> int:
        """Number of valid env steps inserted so far."""
        return self._steps

    @property
    def counters(self) -> dict[str, int]:
        return {**self._counters, "broken": self._storage.broken}

    def metrics(self) -> dict[str, int]:
        """Number of items, used and total cells of a ring, and the counters."""
        room = {} if self.ring is None else {"cells": self.ring.used, "capacity": self.ring.slots}
        return {"size": self.size, **room, **self.counters}

    def insert(self, fragment: Fragment) -> Keys:
        """Copy a fragment into the storage; returns the keys of the items that are now complete.

        A fragment that is not newer than the last one of the same actor is ignored and counted as a duplicate.
        """
        last = self._sequence.get(fragment.actor_id)
        if last is not None and fragment.sequence <= last:
            self._counters["duplicate"] += 1
            return self._keys(np.zeros(0, np.int64))
        if last is None:
            self._check_layout(fragment.trajectory)
        self._make_room(len(fragment.env_index))
        change = self._storage.append(fragment, continues=last is not None and fragment.sequence == last + 1)
        self._sequence[fragment.actor_id] = fragment.sequence
        self._steps += int(fragment.trajectory.valid.sum())
        if len(change.removed):
            self._sampler.remove(change.removed)
            self._counters["overwritten" if self.spec.storage == "ring" else "full"] += len(change.removed)
        if len(change.added):
            self._sampler.add(change.added, self._first_priorities(change.added))
            self._counters["inserted"] += len(change.added)
        return self._keys(change.added)

    def _make_room(self, n: int) -> None:
        """Elite insertion: if `n` new items do not fit, evict the farthest of `contest` random items for each.

        Uses the distances of the last scoring, at no extra cost; an item that was never scored has distance 0.
        """
        lacking = n - (self._storage.slots - self.size)
        if self._ranked is None or not self.spec.contest or lacking <= 0:
            return
        self._drop(self._ranked.farthest(lacking, self.spec.contest, self._rng))

    def _check_layout(self, new: Trajectory[NDArray]) -> None:
        """Check an actor's first fragment against the layout: a silent cast would change the recorded data."""
        rewards = dict.fromkeys(self._layout.rewards, np.dtype(np.float32))
        given = {name: leaf.dtype for name, leaf in new.rewards.items()}
        parts = [("obs", self._layout.obs, new.obs, 2), ("action", self._layout.action, new.action, 2)]
        parts += [("extras", self._layout.extras, new.extras, 2), ("carry", self._layout.carry, new.carry, 1)]
        for name, want, have, lead in parts:
            if dict(tree.items(want)) != dict(tree.items(tree.spec(have, lead))):
                raise ValueError(f"{name} of a fragment is {tree.spec(have, lead)}, the layout says {want}")
        if rewards != given:
            raise ValueError(f"rewards of a fragment are {given}, the layout says {rewards}")

    def _first_priorities(self, slots: NDArray) -> NDArray | None:
        return None if self._priority is None else self._priority(self._storage.gather(slots, with_obs=False))

    def _keys(self, slots: NDArray) -> Keys:
        same = np.full((2, len(slots)), [[self.shard], [self.index]], np.int64)
        return Keys(same[0], same[1], slots, self._storage.generation(slots))

    @property
    def ring(self) -> Ring | None:
        """The ring storage, for code that reads all of its steps; None if the table stores whole fragments."""
        return self._storage if isinstance(self._storage, Ring) else None

    def priorities(self, slots: NDArray) -> NDArray:
        """Priorities [n] of the items in `slots` [n]; ones unless the sampler is `Prioritized`."""
        if isinstance(self._sampler, samplers.Prioritized):
            return self._sampler.priorities(slots)
        return np.ones(len(slots))

    def ready(self, n: int) -> bool:
        """Return True if `sample(n)` would return a batch."""
        return self.size >= self.spec.min_size and self._sampler.ready(n)

    def sample(self, n: int) -> Sample | None:
        """Sample `n` items; None if the table is not `ready(n)`."""
        size = self.size
        draw = self._sampler.draw(n, self._rng) if self.ready(n) else None
        if draw is None:
            return None
        keys, trajectory = self._keys(draw.slots), self._storage.gather(draw.slots)
        if len(draw.spent):
            self._storage.release(draw.spent)
        return Sample(trajectory, keys, draw.probability, np.full(n, size, np.int64), keys.table)

    def draw_candidates(self, n: int, fraction: float) -> Sample:
        """Draw the candidates for `n` items when `fraction` of the run is over; the table must be `ready(n)`."""
        many = n if self._ranked is None else min(self.size, self.spec.candidates_for(n, fraction))
        sample = self.sample(many)
        assert sample is not None, "a table is asked for candidates only when it is ready"
        return sample

    def ranks(self, candidates: int, n: int) -> bool:
        """Return True if the candidates must be scored: there are more than `n`, or elite insertion needs distances."""
        return self._ranked is not None and (candidates > n or self.spec.contest > 0)

    def select(self, candidates: Sample, n: int, distances: NDArray | None) -> Sample:
        """Select `n` candidates by `TableSpec.selection` and their distances [N]; without distances, the first `n`."""
        if self._ranked is None:
            return candidates
        live, slots = self._live(candidates.keys), candidates.keys.slot
        if distances is None:
            chosen = np.arange(n)
        else:
            self._ranked.measured(slots[live], distances[live])
            chosen = choose(self.spec.selection, distances, np.where(live, self._ranked.uses(slots), 0), n)
        self._ranked.picked(slots[chosen][live[chosen]])
        return candidates if n == len(slots) else take_rows(candidates, chosen)

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        """Set new priorities [B]; stale keys are ignored and counted."""
        if not self._takes_priorities:
            return
        live = self._live(keys)
        self._sampler.update(keys.slot[live], priorities[live])

    def evict(self, keys: Keys) -> None:
        """Drop items; stale keys are ignored and counted."""
        self._drop(np.unique(keys.slot[self._live(keys)]))

    def _drop(self, slots: NDArray) -> None:
        if len(slots):
            self._sampler.remove(slots)
            self._storage.release(slots)
            self._counters["evicted"] += len(slots)

    def _live(self, keys: Keys) -> NDArray:
        """Mask [B] of the keys of items that are still in this table; counts stale keys."""
        mine = (keys.table == self.index) & (keys.shard == self.shard)
        live: NDArray = mine & self._storage.alive(np.where(mine, keys.slot, 0), keys.generation)
        self._counters["stale"] += int(np.count_nonzero(mine) - np.count_nonzero(live))
        return live

    def check_valid(self) -> None:
        self._storage.check_valid()
        self._sampler.check_valid()
        if self.spec.sampler in samplers.BUILT_IN:
            slots = np.arange(self._storage.slots)
            alive = slots[self._storage.alive(slots, self._storage.generation(slots))]
            drawable = self._sampler.slots_in(self._sampler.get_state())
            require(np.array_equal(np.sort(drawable), alive), "items that are gone")

    def get_state(self) -> dict[str, Any]:
        return {
            "storage": self._storage.get_state(),
            "sampler": self._sampler.get_state(),
            "rng": self._rng.bit_generator.state,
            "sequence": {str(actor): last for actor, last in self._sequence.items()},
            "steps": self._steps,
            "counters": dict(self._counters),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._storage.set_state(state["storage"])
        _check_slots(self._sampler.slots_in(state["sampler"]), self._storage.slots)
        self._sampler.set_state(state["sampler"])
        self._rng.bit_generator.state = state["rng"]
        self._sequence = {int(actor): to_count(last) for actor, last in state["sequence"].items()}
        self._steps = to_count(state["steps"])
        self._counters = {name: to_count(state["counters"].get(name, 0)) for name in COUNTERS}
