"""Where ranks find each other, every time they come together: a folder of one machine, or a port that all can reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from starling.runtime.collective import Meeting


class MeetingPlace(Protocol):
    """Travels to every rank when it is started."""

    def meet(self, time: int, rank: int, size: int, timeout: float) -> Meeting:
        """For the how-manieth time; within so many seconds."""
        ...


@dataclass(frozen=True)
class Folder:
    """A file for each time; nobody outside this machine can reach its ranks."""

    path: Path

    def meet(self, time: int, rank: int, size: int, timeout: float) -> Meeting:
        return Meeting(FileStore(str(self.path / str(time)), size), rank, size, timeout)


@dataclass(frozen=True)
class Port:
    """A store of torch's that listens where the run is led from; `address` is that of this rank's own machine."""

    host: str
    port: int
    address: str

    def meet(self, time: int, rank: int, size: int, timeout: float) -> Meeting:
        store = _store(self.host, self.port)
        return Meeting(PrefixStore(str(time), store), rank, size, timeout, self.address)


def _store(host: str, port: int, leads: bool = False) -> TCPStore:
    return TCPStore(host, port, None, leads, wait_for_workers=False)


class OpenPort:
    """The store itself, for as long as this lives."""

    def __init__(self, host: str) -> None:
        self._store = _store(host, 0, leads=True)
        self.host, self.port = host, int(self._store.port)
