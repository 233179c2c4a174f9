"""In which order items leave a table: oldest first, uniformly, by priority, or as a score ranks them."""

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
"""What a priority that is not finite or not above this is replaced with: every item keeps a chance."""

_NONE = np.zeros(0, np.int64)


class Draw(NamedTuple):
    """Slots that were drawn, the chance each had, and those that have had their last use."""

    slots: NDArray  # [n] int64
    probability: NDArray  # [n] float64
    spent: NDArray  # [m] int64: no longer in the sampler


class Sampler(Protocol):
    """Knows which slots can be drawn, nothing of what is in them."""

    @property
    def size(self) -> int: ...

    def ready(self, n: int) -> bool:
        """Whether `draw(n)` would give anything."""
        ...

    def add(self, slots: NDArray, priorities: NDArray | None) -> None: ...

    def remove(self, slots: NDArray) -> None: ...

    def draw(self, n: int, rng: np.random.Generator) -> Draw | None: ...

    def update(self, slots: NDArray, priorities: NDArray) -> None: ...

    def check_valid(self) -> None: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class Fifo:
    """Oldest first; every item is handed out `max_times_sampled` times and is then gone.

    The first `buffer` batches take turns (IMPACT's circular buffer, 1912.00167): one that has uses left goes behind the
    others, and where one has had its last, the next in the queue takes part. With 1 a batch has all its uses in a row.
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
        """Priorities mean nothing here."""

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


class Uniform:
    """Every item with the same chance, with replacement."""

    def __init__(self, capacity: int) -> None:
        self._live = IndexSet(capacity)

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
        """Priorities mean nothing here."""

    def check_valid(self) -> None:
        self._live.check_valid()

    def get_state(self) -> dict[str, Any]:
        return self._live.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._live.set_state(state)


class Prioritized:
    """P(i) = p_i^a / sum_k p_k^a (prioritized experience replay, 1511.05952, eq. 1), stratified over the batch."""

    def __init__(self, capacity: int, exponent: float) -> None:
        from starling.replay.sum_tree import SumTree  # numba is loaded only where priorities are used

        self._tree = SumTree(capacity)
        self._exponent = exponent
        self._largest = 1.0  # the largest priority seen, which items that come without one are given
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
        """The priorities p_i [n]; where the exponent is 0 they are forgotten, and 1."""
        return np.asarray(self._tree.get(slots) ** (1.0 / self._exponent if self._exponent else 1.0))

    def check_valid(self) -> None:
        self._tree.check_valid()
        require(0.0 < self._largest < np.inf, "the largest priority is none")
        leaves = self._tree.get_state()["leaves"]
        require(np.count_nonzero(leaves) == self._size, "an item without mass, or mass without an item")

    def get_state(self) -> dict[str, Any]:
        return {"tree": self._tree.get_state(), "largest": self._largest, "size": self._size}

    def set_state(self, state: dict[str, Any]) -> None:
        self._tree.set_state(state["tree"])
        self._largest, self._size = float(state["largest"]), int(state["size"])


class Ranked:
    """Hands out candidates, each at most once a draw; remembers how often each was picked and how far off it was."""

    def __init__(self, capacity: int) -> None:
        self._live = IndexSet(capacity)
        self._uses = np.zeros(capacity, np.int64)
        self._distance = np.zeros(capacity)  # when it was last measured; 0: not yet, it is new

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
        """Priorities mean nothing here."""

    def uses(self, slots: NDArray) -> NDArray:
        """How often the items in `slots` [n] were picked, [n]."""
        return self._uses[slots]

    def measured(self, slots: NDArray, distances: NDArray) -> None:
        """How far off the items in `slots` [n] are, float [n]."""
        self._distance[slots] = distances

    def picked(self, slots: NDArray) -> None:
        """These items [n], all different, are learned from once more."""
        self._uses[slots] += 1

    def farthest(self, n: int, contest: int, rng: np.random.Generator) -> NDArray:
        """`n` items, each the farthest off among `contest` that no other is compared with: slots [n]."""
        each = max(1, min(contest, self.size // n))
        drawn = self._live.draw_distinct(n * each, rng).reshape(n, each)
        return np.asarray(np.take_along_axis(drawn, self._distance[drawn].argmax(1)[:, None], axis=1)[:, 0])

    def check_valid(self) -> None:
        self._live.check_valid()
        require((self._uses >= 0).all(), "picked less often than never")

    def get_state(self) -> dict[str, Any]:
        members = self._live.get_state()["members"]
        return {"members": members, "uses": self._uses[members], "distance": self._distance[members]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._live.set_state(state)
        members = state["members"]
        self._uses[members], self._distance[members] = state["uses"], state["distance"]


BUILT_IN: dict[str, Callable[[TableSpec, int], Sampler]] = {
    "fifo": lambda spec, slots: Fifo(spec.max_times_sampled, spec.buffer),
    "uniform": lambda spec, slots: Uniform(slots),
    "prioritized": lambda spec, slots: Prioritized(slots, spec.priority_exponent),
    "ranked": lambda spec, slots: Ranked(slots),
}


def listed(state: dict[str, Any]) -> NDArray:
    """The slots [n] that can be drawn, in the state of a built-in sampler."""
    drawn = np.flatnonzero(state["tree"]["leaves"]) if "tree" in state else state.get("slots", state.get("members"))
    return np.asarray(drawn)


def build(spec: TableSpec, slots: int) -> Sampler:
    """The sampler a table asks for, over `slots` places; one's own is called with the same two arguments."""
    if spec.sampler in BUILT_IN:
        return BUILT_IN[spec.sampler](spec, slots)
    if ":" in spec.sampler:
        own: Sampler = import_path(spec.sampler)(spec, slots)
        return own
    raise UserError(
        f"table {spec.name!r}: unknown sampler {spec.sampler!r}{did_you_mean(spec.sampler, BUILT_IN)}"
        f" (known: {', '.join(BUILT_IN)}; your own as package.module:Class)"
    )
