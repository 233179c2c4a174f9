"""Write arrays as a safetensors file, and read them back from a file that need not be trusted.

The writer of the safetensors library does not raise `OSError` on a full disk, and makes files that only their owner can
read. Its reader raises exceptions of many types and does not limit the header. Hence the implementations here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from starling.config.bounded_json import parse_json
from starling.experiment.run_folder.disk import open_regular, write_synced
from starling.types import NDArray

_NAMES = {"bool": "BOOL"} | {
    f"{kind}{bits}": f"{letter}{bits}"
    for kind, letter in (("uint", "U"), ("int", "I"), ("float", "F"))
    for bits in (8, 16, 32, 64)
    if (kind, bits) != ("float", 8)
}
_DTYPES = {letters: np.dtype(name) for name, letters in _NAMES.items()}
_LONGEST_HEADER = 2**24
_MOST_AXES, _LONGEST_AXIS = 32, 2**48


def write_arrays(file: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write contiguous arrays and sync them to disk."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # large dtypes first: all are aligned
    header, begin = {}, 0
    for name in names:
        array = arrays[name]
        place = [begin, begin := begin + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = (arrays[name].reshape(-1).view(np.uint8).data for name in names)
    write_synced(file, len(text).to_bytes(8, "little") + text, *content)


def read_arrays(file: Path) -> dict[str, NDArray]:
    """Read the arrays of a safetensors file; raises ValueError if it is invalid or has dtypes other than `_NAMES`."""
    with open(open_regular(file, os.O_RDONLY), "rb") as handle:
        content = np.empty(os.fstat(handle.fileno()).st_size, np.uint8)
        if handle.readinto(content.data) != len(content):
            raise ValueError("cut short while it was read")
    return parse_arrays(content)


def parse_arrays(content: NDArray) -> dict[str, NDArray]:
    """Parse the bytes of a safetensors file, uint8 [n], into arrays; they are views if they are aligned."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    if len(content) < 8 or length > min(_LONGEST_HEADER, len(content) - 8):
        raise ValueError("not a safetensors file: its header has an impossible length")
    header = parse_json(content[8 : 8 + length].tobytes())
    if not isinstance(header, dict):
        raise ValueError("not a safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    data = content[8 + length :]
    arrays, places = {}, []
    for name, entry in header.items():
        dtype, shape, begin, end = _parse_entry(entry, len(data))
        values = data[begin:end]
        if dtype == np.bool_ and values.size and values.max() > 1:
            raise ValueError("a boolean that is neither 0 nor 1")
        if values.ctypes.data % dtype.itemsize:
            values = values.copy()
        arrays[name] = values.view(dtype).reshape(shape)
        places.append((begin, end))
    ends = [0, *(bound for place in sorted(places) for bound in place), len(data)]
    if any(end != begin for end, begin in list(pairwise(ends))[::2]):
        raise ValueError("arrays overlap or leave a gap")
    return arrays


def _parse_entry(entry: Any, size: int) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Return dtype, shape, begin, and end of an array in `size` bytes of data."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("an array without type, shape, or place")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"an array of type {str(entry['dtype'])[:20]}, which is never written")
    shape, place = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > _MOST_AXES or max(shape, default=0) > _LONGEST_AXIS:
        raise ValueError("an impossible shape")
    if not _are_sizes(place) or len(place) != 2 or not place[0] <= place[1] <= size:
        raise ValueError("an array outside its file")
    if math.prod(shape) * dtype.itemsize != place[1] - place[0]:
        raise ValueError("an array whose shape does not fit its bytes")
    return dtype, tuple(shape), place[0], place[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
