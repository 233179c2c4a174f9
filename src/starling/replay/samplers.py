"""Samplers choose the items of a batch: oldest first, uniformly, by priority, or as candidates to be ranked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from starling.errors import UserError, did_you_mean, require
from starling.registry import import_path
from starling.replay.index_set import IndexSet
from starling.replay.spec import TableSpec
from starling.types import NDArray

SMALLEST_PRIORITY = 1e-6
"""Replaces priorities that are smaller or not finite, so that every item can be drawn."""

_NONE = np.zeros(0, np.int64)


class Draw(NamedTuple):
    """Drawn slots with their probabilities, and the slots that were drawn for the last time."""

    slots: NDArray  # [n] int64
    probability: NDArray  # [n] float64
    spent: NDArray  # [m] int64: no longer in the sampler


class Sampler(Protocol):
    """Chooses the items of a batch among the slots of a table; it never sees their content.

    To use your own, set `TableSpec.sampler` in `Algorithm.tables` to "package.module:Class". The class is called as
    `Class(spec, num_slots)`, with the table's `TableSpec` and its number of slots (of a ring, one per env step).
    `examples/own_sampler.py` has two.

    Priorities come from the algorithm: `Algorithm.priority` gives initial ones to `add`, `Loss.priorities` new ones to
    `update`. DQN, R2D2, and SAC return the latter, and weigh the loss by `Draw.probability` with their beta, only if
    `algo.prioritized` is set; without it, `update` is never called.

    Two built-in samplers mean more than a way to draw. The limiter (`replay/limiter.py`) paces learning by the items in
    a table with "fifo", where others use `updates_per_step`. The candidates of "ranked" are scored with the network
    (`CandidateScorer`). Neither is possible with `ray.shards` (`launch/plan.py`). A sampler of your own is treated as
    replay.
    """

    @property
    def size(self) -> int:
        """Number of slots that can be drawn."""
        ...

    def ready(self, n: int) -> bool:
        """Return True if `draw(n, rng)` would return slots."""
        ...

    def add(self, slots: NDArray, priorities: NDArray | None) -> None:
        """Add new items in `slots` [n], with priorities [n] if the algorithm computes initial ones."""
        ...

    def remove(self, slots: NDArray) -> None:
        """Remove the items in `slots` [n]."""
        ...

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        """Draw `n` slots, at random with `rng`; None if the sampler is not `ready(n)`.

        Whether a slot can be drawn twice for one batch is up to the sampler: "uniform" and "prioritized" draw with
        replacement, "fifo" and "ranked" without. `Draw.probability` has, for each slot, the probability that a single
        draw chooses it; importance weights are computed from it. The table removes the items of `Draw.spent` from its
        storage, but does not call `remove` for them.
        """
        ...

    def update(self, slots: NDArray, priorities: NDArray) -> None:
        """Set new priorities [n] of the items in `slots` [n]."""
        ...

    def check_valid(self) -> None:
        """Raise ValueError if the state is inconsistent; called after `set_state` with a state from a file."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Everything that decides what is drawn, as copies: arrays, numbers, strings, and dicts of these."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a result of `get_state`, in a sampler that was built with the same arguments."""
        ...

    @staticmethod
    def slots_in(state: dict[str, Any]) -> NDArray:
        """Slots [n] that can be drawn, according to a state; the table checks that it has them before `set_state`."""
        ...


class Fifo:
    """Draws the oldest items first; every item is drawn `max_times_sampled` times and then removed.

    The first `buffer` batches take turns (IMPACT's circular buffer, 1912.00167): a batch that may be drawn again moves
    behind the others, and the next batch in the queue replaces one that was drawn for the last time. With `buffer` 1,
    a batch is drawn `max_times_sampled` times in a row.
    """

    def __init__(self, max_times_sampled: int, buffer: int = 1) -> None:
        self._max_uses, self._buffer = max_times_sampled, buffer
        self._slots = np.zeros(0, np.int64)  # oldest first
        self._uses = np.zeros(0, np.int64)

    @property
    def size(self) -> int:
        return len(self._slots)

    def ready(self, n: int) -> bool:
        return self.size >= n

    def add(self, slots: NDArray, priorities: NDArray | None) -> None:
        self._slots = np.concatenate([self._slots, slots])
        self._uses = np.concatenate([self._uses, np.zeros(len(slots), np.int64)])

    def remove(self, slots: NDArray) -> None:
        self._keep(~np.isin(self._slots, slots))

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        if not self.ready(n):
            return None
        drawn, probability = self._slots[:n].copy(), np.full(n, 1.0 / self.size)
        self._uses[:n] += 1
        spent = self._uses >= self._max_uses
        gone = self._slots[spent]
        if self._buffer > 1:
            end = min(self._buffer * n, self.size)
            order = np.concatenate([np.arange(n, end), np.arange(n), np.arange(end, self.size)])
            self._slots, self._uses, spent = self._slots[order], self._uses[order], spent[order]
        self._keep(~spent)
        return Draw(drawn, probability, gone)

    def update(self, slots: NDArray, priorities: NDArray) -> None:
        """Ignored: this sampler has no priorities."""

    def _keep(self, kept: NDArray) -> None:
        self._slots, self._uses = self._slots[kept], self._uses[kept]

    def check_valid(self) -> None:
        require(self._slots.shape == self._uses.shape, "slots and their uses are not of one length")
        require(len(np.unique(self._slots)) == len(self._slots), "a slot is queued twice")
        require(((self._uses >= 0) & (self._uses < self._max_uses)).all(), "an item outlived its uses")

    def get_state(self) -> dict[str, Any]:
        return {"slots": self._slots.copy(), "uses": self._uses.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._slots, self._uses = np.array(state["slots"], np.int64), np.array(state["uses"], np.int64)

    @staticmethod
    def slots_in(state: dict[str, Any]) -> NDArray:
        return np.asarray(state["slots"])


class Uniform:
    """Draws every item with the same probability, with replacement."""

    def __init__(self, num_slots: int) -> None:
        self._live = IndexSet(num_slots)

    @property
    def size(self) -> int:
        return len(self._live)

    def ready(self, n: int) -> bool:
        return self.size > 0

    def add(self, slots: NDArray, priorities: NDArray | None) -> None:
        self._live.add(slots)

    def remove(self, slots: NDArray) -> None:
        self._live.discard(slots)

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        if not self.ready(n):
            return None
        return Draw(self._live.draw(n, rng), np.full(n, 1.0 / self.size), _NONE)

    def update(self, slots: NDArray, priorities: NDArray) -> None:
        """Ignored: this sampler has no priorities."""

    def check_valid(self) -> None:
        self._live.check_valid()

    def get_state(self) -> dict[str, Any]:
        return self._live.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._live.set_state(state)

    @staticmethod
    def slots_in(state: dict[str, Any]) -> NDArray:
        return np.asarray(state["members"])


class Prioritized:
    """Draws with P(i) = p_i^a / sum_k p_k^a (prioritized replay, 1511.05952, eq. 1), stratified over the batch."""

    def __init__(self, num_slots: int, exponent: float) -> None:
        from starling.replay.sum_tree import SumTree  # loads numba, which only this sampler needs

        self._tree = SumTree(num_slots)
        self._exponent = exponent
        self._largest = 1.0  # the largest priority so far; new items without a priority get it
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def ready(self, n: int) -> bool:
        return self._size > 0

    def add(self, slots: NDArray, priorities: NDArray | None) -> None:
        if priorities is None:
            priorities = np.full(len(slots), self._largest)
            self._tree.set(slots, priorities**self._exponent)
        else:
            self.update(slots, priorities)
        self._size += len(slots)

    def remove(self, slots: NDArray) -> None:
        self._tree.set(slots, np.zeros(len(slots)))
        self._size -= len(slots)

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        if not self.ready(n):
            return None
        slots = self._tree.sample((np.arange(n) + rng.random(n)) / n)
        return Draw(slots, self._tree.get(slots) / self._tree.total, _NONE)

    def update(self, slots: NDArray, priorities: NDArray) -> None:
        if len(slots) == 0:
            return
        priorities = np.asarray(priorities, np.float64)
        usable = np.isfinite(priorities) & (priorities > SMALLEST_PRIORITY)
        priorities = np.where(usable, priorities, SMALLEST_PRIORITY)
        self._tree.set(slots, priorities**self._exponent)
        self._largest = max(self._largest, float(priorities.max()))

    def priorities(self, slots: NDArray) -> NDArray:
        """Priorities p_i [n]; all 1 if the exponent is 0, since the tree stores p_i^a."""
        return np.asarray(self._tree.get(slots) ** (1.0 / self._exponent if self._exponent else 1.0))

    def check_valid(self) -> None:
        self._tree.check_valid()
        require(0.0 < self._largest < np.inf, "the largest priority is not positive")
        leaves = self._tree.get_state()["leaves"]
        require(np.count_nonzero(leaves) == self._size, "an item without mass, or mass without an item")

    def get_state(self) -> dict[str, Any]:
        return {"tree": self._tree.get_state(), "largest": self._largest, "size": self._size}

    def set_state(self, state: dict[str, Any]) -> None:
        self._tree.set_state(state["tree"])
        self._largest, self._size = float(state["largest"]), int(state["size"])

    @staticmethod
    def slots_in(state: dict[str, Any]) -> NDArray:
        return np.asarray(np.flatnonzero(state["tree"]["leaves"]))


class Ranked:
    """Draws candidates uniformly without replacement; stores how often each was selected, and its last distance."""

    def __init__(self, num_slots: int) -> None:
        self._live = IndexSet(num_slots)
        self._uses = np.zeros(num_slots, np.int64)
        self._distance = np.zeros(num_slots)  # at the last scoring; 0: never scored

    @property
    def size(self) -> int:
        return len(self._live)

    def ready(self, n: int) -> bool:
        return self.size >= n

    def add(self, slots: NDArray, priorities: NDArray | None) -> None:
        self._live.add(slots)
        self._uses[slots], self._distance[slots] = 0, 0.0

    def remove(self, slots: NDArray) -> None:
        self._live.discard(slots)

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None:
        if not self.ready(n):
            return None
        return Draw(self._live.draw_distinct(n, rng), np.full(n, 1.0 / self.size), _NONE)

    def update(self, slots: NDArray, priorities: NDArray) -> None:
        """Ignored: this sampler has no priorities."""

    def uses(self, slots: NDArray) -> NDArray:
        """Number of times [n] that the items in `slots` [n] were selected."""
        return self._uses[slots]

    def measured(self, slots: NDArray, distances: NDArray) -> None:
        """Store new distances [n] of the items in `slots` [n]."""
        self._distance[slots] = distances

    def picked(self, slots: NDArray) -> None:
        """Count one more selection of the items in `slots` [n], all different."""
        self._uses[slots] += 1

    def farthest(self, n: int, contest: int, rng: np.random.Generator) -> NDArray:
        """Slots [n] of the farthest item in each of `n` disjoint random groups of at most `contest` items."""
        each = max(1, min(contest, self.size // n))
        drawn = self._live.draw_distinct(n * each, rng).reshape(n, each)
        return np.asarray(np.take_along_axis(drawn, self._distance[drawn].argmax(1)[:, None], axis=1)[:, 0])

    def check_valid(self) -> None:
        self._live.check_valid()
        require((self._uses >= 0).all(), "a negative number of uses")

    def get_state(self) -> dict[str, Any]:
        members = self._live.get_state()["members"]
        return {"members": members, "uses": self._uses[members], "distance": self._distance[members]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._live.set_state(state)
        members = state["members"]
        self._uses[members], self._distance[members] = state["uses"], state["distance"]

    @staticmethod
    def slots_in(state: dict[str, Any]) -> NDArray:
        return np.asarray(state["members"])


class BuiltIn(NamedTuple):
    """A sampler that has a name."""

    make: Callable[[TableSpec, int], Sampler]
    takes_priorities: bool = False


BUILT_IN = {
    "fifo": BuiltIn(lambda spec, num_slots: Fifo(spec.max_times_sampled, spec.buffer)),
    "uniform": BuiltIn(lambda spec, num_slots: Uniform(num_slots)),
    "prioritized": BuiltIn(lambda spec, num_slots: Prioritized(num_slots, spec.priority_exponent), True),
    "ranked": BuiltIn(lambda spec, num_slots: Ranked(num_slots)),
}


def takes_priorities(spec: TableSpec) -> bool:
    """Return True if the sampler of a table takes priorities; one of your own always gets them and may ignore them."""
    return spec.sampler not in BUILT_IN or BUILT_IN[spec.sampler].takes_priorities


def build(spec: TableSpec, num_slots: int) -> Sampler:
    """Build the sampler that `TableSpec.sampler` names, for a table of `num_slots`; see `Sampler` for your own."""
    if spec.sampler in BUILT_IN:
        return BUILT_IN[spec.sampler].make(spec, num_slots)
    if ":" in spec.sampler:
        own: Sampler = import_path(spec.sampler)(spec, num_slots)
        return own
    raise UserError(
        f"table {spec.name!r}: unknown sampler {spec.sampler!r}{did_you_mean(spec.sampler, BUILT_IN)}"
        f" (known: {', '.join(BUILT_IN)}; your own as package.module:Class)"
    )
