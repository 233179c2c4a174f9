"""Large parts of a state that several checkpoints share: each is written once, and copied only if it changes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

from starling.types import NDArray


class SegmentLostError(Exception):
    """The bytes of a segment were lost with their machine; the next state has new segments."""


class Segment(ABC):
    """Bytes as of the time when the state was taken; any thread may read them until they are released."""

    def __init__(self, size: int, name: str | None) -> None:
        self.size = size
        self.name = name  # SHA-256 of the bytes; None until they are written to disk

    @abstractmethod
    def read(self) -> bytes: ...

    def release(self) -> None:  # noqa: B027 (optional to override)
        """Called when the reader is done."""


class Joined(Segment):
    """Concatenation of immutable pieces."""

    def __init__(self, pieces: tuple[bytes, ...], name: str | None = None) -> None:
        super().__init__(sum(map(len, pieces)), name)
        self._pieces = pieces

    def read(self) -> bytes:
        return b"".join(self._pieces)


class Block(Segment):
    """A part of a mutable array; copied only if it changes before its reader is done."""

    def __init__(self, view: NDArray, name: str | None = None) -> None:
        super().__init__(view.nbytes, name)
        self._view, self._readers, self._lock = view, 0, threading.Lock()
        self._detached = False

    def hold(self) -> Block:
        """Add a reader."""
        with self._lock:
            self._readers += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._detached and not self._readers:
                self._view = self._view[:0].copy()  # free the copy now, not with the whole state

    def detach(self) -> None:
        """Copy the bytes if there are readers; called before the array changes here."""
        with self._lock:
            if self._readers:
                self._view, self._detached = self._view.copy(), True

    def read(self) -> bytes:
        with self._lock:
            return self._view.tobytes()


@dataclass(frozen=True)
class Segmented:
    """A leaf of a state that is made of segments."""

    parts: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)
