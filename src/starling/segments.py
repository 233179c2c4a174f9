"""Large parts of a state: bytes that many checkpoints share, so that each is written once and none is copied first."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

from starling.types import NDArray


class SegmentLostError(Exception):
    """The bytes of a segment are gone, with the machine that held them; the next state has others."""


class Segment(ABC):
    """Bytes as they were when the state was taken; any thread may read them until they are released."""

    def __init__(self, size: int, name: str | None) -> None:
        self.size = size
        self.name = name  # SHA-256 of the bytes; None until they were on disk once

    @abstractmethod
    def read(self) -> bytes: ...

    def release(self) -> None:  # noqa: B027 (most have nothing to let go)
        """The reader is done."""


class Joined(Segment):
    """Pieces that never change, one after the other."""

    def __init__(self, pieces: tuple[bytes, ...], name: str | None = None) -> None:
        super().__init__(sum(map(len, pieces)), name)
        self._pieces = pieces

    def read(self) -> bytes:
        return b"".join(self._pieces)


class Block(Segment):
    """A part of an array that goes on changing: it is copied only if it changes before its reader is done."""

    def __init__(self, view: NDArray, name: str | None = None) -> None:
        super().__init__(view.nbytes, name)
        self._view, self._readers, self._lock = view, 0, threading.Lock()
        self._detached = False

    def hold(self) -> Block:
        """There is a reader from now on."""
        with self._lock:
            self._readers += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._detached and not self._readers:
                self._view = self._view[:0].copy()  # the copy goes now, not when the whole state does

    def detach(self) -> None:
        """The array is about to change here."""
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
