"""Credits: slots of shared memory that are lent to groups of envs, one fragment each, as the limiter allows.

The ledger accounts for the env steps of all fragments: produced = inserted + open + lost.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from starling.actor.core import GroupSpec
from starling.actor.recorder import FragmentBuffer
from starling.types import NDArray


@dataclass
class ActorSlots:
    """The slots of one group, and those that are lent."""

    env_index: NDArray  # [B] int64
    buffers: Sequence[FragmentBuffer | None]  # in shared memory; None if the slot is on another machine
    writer: str  # the worker that fills them
    incarnation: int = 0  # number of restarts of its env loop
    lent: set[int] = field(default_factory=set)

    def actor_id(self, group: int) -> int:
        """The actor id in the fragments of the current incarnation."""
        return GroupSpec(self.env_index, self.incarnation).actor_id(group)


class Credits:
    """Lends slots in the order in which they came back, so that no group gets ahead of the others.

    Args:
        actor_slots: The slots of every group.
        begin: `Tables.begin`: counts a fragment of so many envs as begun; returns False if none may begin now.
        take_back: `Tables.take_back`: takes back begun fragments, of so many envs in total, that will never arrive.
    """

    def __init__(
        self, actor_slots: dict[int, ActorSlots], begin: Callable[[int], bool], take_back: Callable[[int], None]
    ) -> None:
        self.actor_slots, self.ledger = actor_slots, Ledger()
        self._try_begin, self._take_back = begin, take_back
        self._free: deque[tuple[int, int]] = deque()  # (group, slot) that may be lent: writer and env loop are running
        self._writers: set[str] = set()  # that are running
        self._paused: set[int] = set()  # groups without an env loop

    @property
    def incarnations(self) -> dict[int, int]:
        return {group: slots.incarnation for group, slots in self.actor_slots.items()}

    def writer_begins(self, name: str) -> None:
        """A worker was started: all slots that it writes are free."""
        self._writers.add(name)
        mine = [
            group for group, slots in self.actor_slots.items() if slots.writer == name and group not in self._paused
        ]
        # Round-robin over the groups: the first slot of each, then the second of each.
        pairs = [(slot, group) for group in mine for slot in range(len(self.actor_slots[group].buffers))]
        self._free.extend((group, slot) for slot, group in sorted(pairs))

    def writer_ends(self, name: str) -> None:
        """A worker is gone: the fragments that it was writing are lost, and its slots wait until it is started again.

        Nothing happens if it writes no fragments (`env`, `evaluator`, `shard`).
        """
        self._writers.discard(name)
        for slots in self.actor_slots.values():
            if slots.writer == name:
                self._take_back(len(slots.env_index) * len(slots.lent))
                slots.lent.clear()
        self._free = deque((group, slot) for group, slot in self._free if self.actor_slots[group].writer != name)

    def incarnation_ends(self, group: int, produced: int) -> None:
        """A group's env loop is gone, which had produced so many steps; the next one is a new incarnation."""
        slots = self.actor_slots[group]
        self.ledger.on_ended(slots.actor_id(group), produced)
        slots.incarnation += 1

    def pause(self, group: int) -> None:
        """The env loop of a group is gone, but not its writer: lend nothing for it; see `take_back_unused`."""
        self._paused.add(group)
        self._free = deque((other, slot) for other, slot in self._free if other != group)

    def take_back_unused(self, group: int, unused: Sequence[int]) -> None:
        """The writer returned these slots of a group without a fragment, since the env loop is gone."""
        slots = self.actor_slots[group]
        unused_slots = slots.lent & set(unused)
        self._take_back(len(slots.env_index) * len(unused_slots))
        slots.lent -= unused_slots
        if group not in self._paused:
            self._free.extend((group, slot) for slot in sorted(unused_slots))

    def resume(self, group: int) -> None:
        """A group has an env loop again."""
        if group not in self._paused:
            return
        self._paused.discard(group)
        slots = self.actor_slots[group]
        if slots.writer in self._writers:
            self._free.extend((group, slot) for slot in range(len(slots.buffers)) if slot not in slots.lent)

    def grant(self) -> Iterator[tuple[str, int, int]]:
        """Grant all credits that the limiter allows: yields (writer, group, slot)."""
        while self._free:
            group, slot = self._free[0]
            slots = self.actor_slots[group]
            if not self._try_begin(len(slots.env_index)):
                return
            self._free.popleft()
            slots.lent.add(slot)
            yield slots.writer, group, slot

    def free_slot(self, group: int, slot: int) -> None:
        """The fragment in a slot was stored: the slot may be lent again."""
        self.actor_slots[group].lent.discard(slot)
        if group not in self._paused:  # else `resume` finds it
            self._free.append((group, slot))


class Ledger:
    """Env steps by actor id, i.e. per incarnation of a group."""

    def __init__(self) -> None:
        self._inserted: dict[int, int] = defaultdict(int)  # by actor id
        self._lost_later: dict[int, int] = defaultdict(int)  # by actor id, after the fragment had left its writer
        self._produced: dict[int, int] = {}  # by actor id, of incarnations that have ended

    def on_inserted(self, actor_id: int, steps: int) -> None:
        self._inserted[actor_id] += steps

    def on_lost(self, actor_id: int, steps: int) -> None:
        """Steps that reached a node or a shard were lost before they were in a table."""
        self._lost_later[actor_id] += steps

    def on_ended(self, actor_id: int, produced: int) -> None:
        """An incarnation has ended after so many steps: those that were not inserted are lost."""
        self._produced[actor_id] = produced

    def row(self, living: dict[int, int]) -> dict[str, int]:
        """The balance, given the steps of all running actors: produced = inserted + open + lost."""
        produced = sum(self._produced.values()) + sum(living.values())
        inserted = sum(self._inserted.values())
        lost = sum(count - self._inserted[actor_id] for actor_id, count in self._produced.items())
        lost += sum(steps for actor_id, steps in self._lost_later.items() if actor_id not in self._produced)
        return {"produced": produced, "inserted": inserted, "lost": lost, "open": produced - inserted - lost}
