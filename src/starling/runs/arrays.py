"""Arrays to a safetensors file, which that library reads back.

The library's own writer tells of a full disk with an error that is no OSError, and makes files that only their owner
can read; this one does neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from starling.runs.disk import write_synced
from starling.types import NDArray

_NAMES = {"bool": "BOOL"} | {
    f"{kind}{bits}": f"{letter}{bits}"
    for kind, letter in (("uint", "U"), ("int", "I"), ("float", "F"))
    for bits in (8, 16, 32, 64)
}


def write_arrays(file: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write `arrays`, each contiguous; they are on the disk when this returns."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # large numbers first: all are aligned
    header, begin = {}, 0
    for name in names:
        array = arrays[name]
        place = [begin, begin := begin + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = (arrays[name].reshape(-1).view(np.uint8).data for name in names)
    write_synced(file, len(text).to_bytes(8, "little") + text, *content)
