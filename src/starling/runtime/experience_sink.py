"""A policy's way to the store and the learner in another process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import nn

from starling.actor.recorder import FragmentBuffer, FragmentBufferSpec
from starling.runtime.link import Link
from starling.runtime.messages import CreditGranted, CreditsReturned, EnvGroupLost, FragmentReady
from starling.runtime.shared_memory import AnonymousSharedMemory
from starling.runtime.shared_weights import SharedWeights, WeightReader
from starling.types import Fragment, Progress


@dataclass(frozen=True)
class FragmentPort:
    """Slots for the fragments of some groups: the layout of a group's slots, and the offset at which each begins."""

    shared_memory: AnonymousSharedMemory
    specs: dict[int, FragmentBufferSpec]
    offsets: dict[int, list[int]]

    def buffers(self) -> dict[int, list[FragmentBuffer]]:
        """The slots of every group as arrays."""
        return {
            group: [self.shared_memory.arrays(self.specs[group], offset) for offset in offsets]
            for group, offsets in self.offsets.items()
        }


class LinkSink:
    """A credit is a slot to write into; a full slot is named to the other side and comes back as a credit."""

    def __init__(
        self, link: Link, port: FragmentPort, shared_weights: SharedWeights, model: nn.Module, fetch_every: int = 1
    ) -> None:
        self._link, self._slots = link, port.buffers()
        self._credits: dict[int, deque[int]] = {group: deque() for group in self._slots}
        self._open: dict[int, int] = {}
        self._lost_groups: list[int] = []
        self._weights = WeightReader(shared_weights, model, fetch_every)

    def begin(self, group: int) -> FragmentBuffer | None:
        if group in self._open:  # what was being written there was abandoned
            return self._slots[group][self._open[group]]
        self._receive()
        if not self._credits[group]:
            return None
        self._open[group] = self._credits[group].popleft()
        return self._slots[group][self._open[group]]

    def _receive(self) -> None:
        """Take in what has come over the link."""
        for message in self._link.receive():
            match message:
                case EnvGroupLost(group):
                    self._lost_groups.append(group)
                case CreditGranted(group, slot):
                    self._credits[group].append(slot)
        self._link.raise_if_ended()

    def lost_groups(self) -> list[int]:
        """Groups whose env loop is gone since the last call."""
        self._receive()
        lost, self._lost_groups = self._lost_groups, []
        return lost

    def give_back(self, group: int) -> None:
        """Return everything that was lent for a group."""
        slots = [*self._credits[group], *([self._open.pop(group)] if group in self._open else [])]
        self._credits[group].clear()
        self._link.send(CreditsReturned(group, tuple(slots)))

    def insert(self, group: int, fragment: Fragment) -> None:
        slot = self._open.pop(group)
        if not self._link.send(FragmentReady(group, slot, fragment.actor_id, fragment.sequence)):
            raise EOFError("the main process is gone or no longer listens")

    def refresh(self) -> Progress:
        return self._weights.refresh()
