"""States as they are written or sent: JSON, arrays, and segments, which several checkpoints share."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from starling.config.bounded_json import parse_json
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


@dataclass(frozen=True)
class FrozenPart:
    """A JSON document that refers to arrays and segments by their path."""

    document: dict[str, Any]
    arrays: dict[str, NDArray]
    segments: dict[str, Segmented]


Frozen = dict[str, FrozenPart]
DEEPEST = 64
"""Maximum nesting depth of dicts; a run's state has about ten levels."""


def freeze(state: dict[str, Any]) -> Frozen:
    """Convert `state`, nested dicts of arrays, tensors, segments, and JSON values, for writing.

    Tensors and JSON values are copied. Arrays and segments are not: they must not change afterwards.
    """
    frozen = {}
    for name, value in state.items():
        arrays: dict[str, NDArray] = {}
        segments: dict[str, Segmented] = {}
        frozen[name] = FrozenPart(_split(value, name, arrays, segments), arrays, segments)
    return frozen


def thaw(part: FrozenPart) -> Any:
    """Restore a frozen state; raises ValueError, TypeError, AttributeError, or KeyError if it is invalid."""
    return _join(part.document, part.arrays, part.segments)


def pack(state: dict[str, Any]) -> bytes:
    """Serialize a state without segments to bytes, for another process."""
    part = freeze({"state": state})["state"]
    text = json.dumps(part.document, allow_nan=False).encode()
    return len(text).to_bytes(8, "little") + text + save(part.arrays)


def unpack(data: bytes) -> Any:
    """Restore a packed state.

    Raises:
        ValueError: The bytes are not a packed state.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return thaw(FrozenPart(json.loads(data[8:end]), load(data[end:]), {}))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"a packed state that cannot be read: {error}") from error


def _split(value: Any, path: str, arrays: dict[str, NDArray], segments: dict[str, Segmented]) -> Any:
    """Convert `value` to JSON; arrays and segments go into their own dicts and are replaced by references."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"state at {path} has keys that are not strings")
        return {"dict": {key: _split(child, f"{path}/{key}", arrays, segments) for key, child in value.items()}}
    if isinstance(value, Segmented):
        segments[path] = value
        return {"segments": path}
    if isinstance(value, torch.Tensor):
        arrays[path] = np.array(value.detach().cpu().numpy(), order="C")
        return {"tensor": path}
    if isinstance(value, np.ndarray):
        arrays[path] = np.asarray(value, order="C")
        return {"array": path}
    try:
        return {"value": json.loads(json.dumps(value, allow_nan=False))}  # copies, and fails if it is not JSON
    except ValueError:  # strict JSON has no NaN and infinities
        return {"python": json.dumps(value)}


def _join(
    document: dict[str, Any], arrays: Mapping[str, NDArray], segments: Mapping[str, Segmented], depth: int = 0
) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"a state nested more than {DEEPEST} deep")
    ((kind, content),) = document.items()
    if kind == "dict":
        return {key: _join(child, arrays, segments, depth + 1) for key, child in content.items()}
    if kind == "tensor":
        return torch.from_numpy(arrays[content])
    if kind == "segments":
        return segments[content]
    if kind == "python":
        return parse_json(content)
    if kind == "value":
        return content
    if kind == "array":
        return arrays[content]
    raise ValueError(f"a state with a leaf of unknown kind {kind[:20]!r}")
