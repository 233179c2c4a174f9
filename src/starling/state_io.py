"""A state as it was at one moment, in the shape in which it is written, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from starling.config.bounded_json import parse_json
from starling.segments import Segmented
from starling.types import NDArray


@dataclass(frozen=True)
class FrozenPart:
    """JSON in which arrays and segments are named by their path, and these by that path."""

    document: dict[str, Any]
    arrays: dict[str, NDArray]
    segments: dict[str, Segmented]


Frozen = dict[str, FrozenPart]
DEEPEST = 64
"""Dicts within one another; a run's state has about ten."""


def freeze(state: dict[str, Any]) -> Frozen:
    """What to write of `state`: nested dicts of arrays, tensors, segments and JSON values.

    Tensors and JSON values are copied here. Arrays and segments belong to the state: nobody changes them any more.
    """
    frozen = {}
    for name, value in state.items():
        arrays: dict[str, NDArray] = {}
        segments: dict[str, Segmented] = {}
        frozen[name] = FrozenPart(_split(value, name, arrays, segments), arrays, segments)
    return frozen


def thaw(part: FrozenPart) -> Any:
    """The state that was frozen; raises ValueError, TypeError, AttributeError, or KeyError for what is none."""
    return _join(part.document, part.arrays, part.segments)


def pack(state: dict[str, Any]) -> bytes:
    """A state without segments as bytes, for another process."""
    part = freeze({"state": state})["state"]
    text = json.dumps(part.document, allow_nan=False).encode()
    return len(text).to_bytes(8, "little") + text + save(part.arrays)


def unpack(data: bytes) -> Any:
    """The state that was packed.

    Raises:
        ValueError: These bytes are no packed state.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return thaw(FrozenPart(json.loads(data[8:end]), load(data[end:]), {}))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"a packed state that cannot be read: {error}") from error


def _split(value: Any, path: str, arrays: dict[str, NDArray], segments: dict[str, Segmented]) -> Any:
    """JSON for `value`; arrays and segments move to their own dicts and leave a reference behind."""
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
        return {"value": json.loads(json.dumps(value, allow_nan=False))}  # a copy; what cannot be written fails here
    except ValueError:  # JSON has no number for NaN and the infinities, which must come back as they were
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
