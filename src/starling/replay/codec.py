"""How the observations of a ring are kept in memory: as they are, or compressed a few steps at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any, Protocol

import numpy as np

from starling.errors import UserError, to_count
from starling.replay.blocks import LEAST_BYTES, Blocks
from starling.replay.copying import take
from starling.replay.grid import Grid
from starling.replay.spec import Codec
from starling.segments import Joined, Segmented
from starling.types import ArraySpec, NDArray

CHUNK = 8
LEVEL = 1
"""Cells that are compressed together, and how hard. Measured on random play of six Atari games, GB a million frames and
microseconds to write and to read a chunk: 4 cells 0.19, 29, 10; 8 cells 0.14, 55, 16; 16 cells 0.11, 82, 24 (and a
window of seven frames then reads more than it needs). Levels 2 and 3 save 1 % and take up to a third longer."""
GROUP_BYTES = 2**25
"""Bytes, before they are compressed, of the chunks that a checkpoint keeps in one file."""
SMALLEST = 1024
"""Bytes of a value from which on compressing it pays: below, an object a chunk outweighs what is saved."""


class Cells(Protocol):
    """One value for every cell of a grid."""

    def write(self, cells: NDArray, values: NDArray) -> None:
        """Set `cells` [T, B], each column in one ring and in order of time, to `values` [T, B, ...]."""
        ...

    def take(self, cells: NDArray) -> NDArray:
        """Copies of the values of `cells` [...]: [..., value]."""
        ...

    def get_state(self, used: int) -> Any: ...

    def set_state(self, state: Any) -> None: ...


class Plain:
    """An array."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._grid = grid
        self._values = np.zeros((grid.cells, *spec.shape), spec.dtype)
        self._blocks = Blocks(self._values, grid)

    def write(self, cells: NDArray, values: NDArray) -> None:
        self._blocks.touch(cells)
        self._values[cells] = values

    def take(self, cells: NDArray) -> NDArray:
        return take(self._values, cells)

    def get_state(self, used: int) -> Any:
        if self._values.nbytes < LEAST_BYTES:
            return self._grid.save(self._values, used)
        return self._blocks.get_state(used)

    def set_state(self, state: Any) -> None:
        if isinstance(state, dict) and "open" in state:
            raise _other_codec("zstd", "none")
        self._blocks.forget()
        if isinstance(state, dict):
            self._blocks.set_state(state)
        else:
            self._grid.load(self._values, state)


class Chunked:
    """Chunks of consecutive cells of a ring, compressed; of every ring one chunk is open: as it is, to be written to.

    When a ring comes round, the chunk that is opened still holds the steps of the last round that are not yet
    overwritten, so it is unpacked first.
    """

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._grid, self._spec, self._packer = grid, spec, Packer()
        self._chunks = -(-grid.length // CHUNK)  # in a ring
        self._closed = [b""] * (grid.rows * self._chunks)  # b"": never written, or open
        self._open = np.zeros((grid.rows, CHUNK, *spec.shape), spec.dtype)
        self._which = np.arange(grid.rows) * self._chunks  # [rows] the chunk that is open
        self._group = max(1, GROUP_BYTES // (CHUNK * spec.nbytes))  # chunks that are saved as one segment
        self._saved: dict[int, Joined] = {}  # groups that were saved before and have not changed

    def write(self, cells: NDArray, values: NDArray) -> None:
        rings, chunks, places = self._find(cells)
        for t in range(len(cells)):
            for b in np.nonzero(chunks[t] != self._which[rings[t]])[0]:
                self._turn(int(rings[t, b]), int(chunks[t, b]))
            self._open[rings[t], places[t]] = values[t]

    def _find(self, cells: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """The ring, the chunk and the place in the chunk of each of `cells` [...]."""
        rings, steps = np.divmod(cells, self._grid.length)
        chunks, places = np.divmod(steps, CHUNK)
        return rings, rings * self._chunks + chunks, places

    def _turn(self, ring: int, chunk: int) -> None:
        """Close the open chunk of a ring and open another."""
        for changed in (int(self._which[ring]), chunk):
            self._saved.pop(changed // self._group, None)
        self._closed[int(self._which[ring])] = self._packer.pack(self._open[ring])
        packed, self._closed[chunk] = self._closed[chunk], b""
        self._open[ring] = self._unpack(packed) if packed else 0
        self._which[ring] = chunk

    def _unpack(self, packed: bytes) -> NDArray:
        return self._packer.unpack(packed, (CHUNK, *self._spec.shape), self._spec.dtype)

    def take(self, cells: NDArray) -> NDArray:
        flat = cells.ravel()
        rings, chunks, places = self._find(flat)
        order = np.argsort(chunks, kind="stable")  # every chunk is unpacked once
        begins = np.nonzero(np.diff(chunks[order], prepend=-1))[0].tolist()
        out = np.empty((len(flat), *self._spec.shape), self._spec.dtype)
        for begin, end in itertools.pairwise([*begins, len(flat)]):
            mine = order[begin:end]
            out[mine] = self._chunk(int(rings[mine[0]]), int(chunks[mine[0]]))[places[mine]]
        return out.reshape(*cells.shape, *self._spec.shape)

    def _chunk(self, ring: int, chunk: int) -> NDArray:
        """The values [CHUNK, ...] of a chunk; of an unwritten cell whatever there is."""
        packed = self._closed[chunk]
        return self._unpack(packed) if packed else self._open[ring]

    def get_state(self, used: int) -> dict[str, Any]:
        """The packed chunks in groups: all there are, since a chunk is written before it is closed."""
        groups = -(-len(self._closed) // self._group)
        return {
            "closed": Segmented(tuple(self._segment(group) for group in range(groups))),
            "sizes": np.array([*map(len, self._closed)], np.int32),
            "group": self._group,
            "open": self._open.copy(),
            "which": self._which.copy(),
        }

    def _segment(self, group: int) -> Joined:
        if group not in self._saved:
            self._saved[group] = Joined(tuple(self._closed[group * self._group : (group + 1) * self._group]))
        return self._saved[group]

    def set_state(self, state: Any) -> None:
        if not (isinstance(state, dict) and "open" in state):
            raise _other_codec("none", "zstd")
        group, segments = self._check(state), state["closed"].parts
        self._closed, self._saved = [], {}
        for i, segment in enumerate(segments):
            sizes = state["sizes"][i * group : (i + 1) * group]
            pieces = parted({"bytes": np.frombuffer(segment.read(), np.uint8), "sizes": sizes})
            for packed in filter(None, pieces):
                self._packer.check(packed, CHUNK * self._spec.nbytes)
            self._closed += pieces
            if group == self._group:
                self._saved[i] = Joined(tuple(pieces), segment.name)
        self._open[:], self._which[:] = state["open"], state["which"]

    def _check(self, state: dict[str, Any]) -> int:
        """Refuse a state that is no state of these rings, before any segment is read; returns its chunks a segment."""
        group, sizes, which = to_count(state["group"]), _sizes(state["sizes"]), state["which"]
        if group < 1 or len(sizes) != self._grid.rows * self._chunks:
            raise _broken(f"{len(sizes)} chunks in groups of {group}, not {self._grid.rows * self._chunks} chunks")
        if sizes.max() > 2 * CHUNK * self._spec.nbytes + 64:
            raise _broken(f"a chunk of {sizes.max():,} bytes, which has {CHUNK * self._spec.nbytes:,} unpacked")
        expected = np.add.reduceat(sizes, np.arange(0, len(sizes), group)).tolist()
        if [segment.size for segment in state["closed"].parts] != expected:
            raise _broken("segments of other sizes than their chunks")
        if which.dtype.kind not in "iu" or not np.array_equal(which // self._chunks, np.arange(self._grid.rows)):
            raise _broken("the open chunk of a ring lies in another ring")
        if sizes[which].any():
            raise _broken("a chunk is both open and closed")
        return group


class Packer:
    """Arrays to compressed bytes and back; for one thread at a time."""

    def __init__(self) -> None:
        import zstandard  # loaded only where something is compressed

        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._size_of, self._error = zstandard.frame_content_size, zstandard.ZstdError

    def pack(self, values: NDArray) -> bytes:
        packed = self._compressor.compress(np.ascontiguousarray(values).data)
        return memoryview(packed).tobytes()  # what comes from the library was cut off room for the worst, which stays

    def unpack(self, packed: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """What was packed, read-only; never more than an array of `shape` and `dtype` takes."""
        size = math.prod(shape) * dtype.itemsize
        self.check(packed, size)
        try:
            found = self._decompressor.decompress(packed, max_output_size=size, allow_extra_data=False)
        except self._error as error:
            raise _broken(str(error)) from None
        return np.frombuffer(found, dtype).reshape(shape)

    def check(self, packed: bytes, size: int) -> None:
        """Refuse what does not say of itself that it unpacks to `size` bytes; this reads a few bytes only."""
        try:
            told = self._size_of(packed)
        except self._error as error:
            raise _broken(str(error)) from None
        if told != size:
            raise _broken(f"a chunk unpacks to {'an unknown number of' if told < 0 else told} bytes, not {size}")


def joined(packed: list[bytes]) -> dict[str, NDArray]:
    """Bytes of different lengths as arrays, for a state."""
    return {"bytes": np.frombuffer(b"".join(packed), np.uint8), "sizes": np.array([*map(len, packed)], np.int32)}


def parted(state: dict[str, NDArray]) -> list[bytes]:
    """The bytes that `joined` made arrays of."""
    everything, sizes = state["bytes"].tobytes(), _sizes(state["sizes"])
    if sizes.sum() != len(everything):
        raise _broken(f"{sizes.sum():,} bytes in pieces, not {len(everything):,}")
    ends = itertools.accumulate(sizes.tolist(), initial=0)
    return [everything[begin:end] for begin, end in itertools.pairwise(ends)]


def _sizes(saved: NDArray) -> NDArray:
    """Saved sizes [n] as int64; refuses what is none."""
    if saved.ndim != 1 or saved.dtype.kind not in "iu" or (saved.astype(np.int64) < 0).any():
        raise _broken("sizes that are none")
    return saved.astype(np.int64)


def pays(codec: Codec, size: int) -> bool:
    """Whether values of so many bytes are compressed."""
    return codec == "zstd" and size >= SMALLEST


def make_cells(codec: Codec, spec: ArraySpec, grid: Grid) -> Cells:
    return Chunked(spec, grid) if pays(codec, spec.nbytes) else Plain(spec, grid)


def _broken(problem: str) -> UserError:
    return UserError(f"what is compressed in this replay is broken: {problem}; go on from another checkpoint")


def _other_codec(saved: str, here: str) -> UserError:
    return UserError(f"this replay was saved with codec {saved}, not {here}: go on with algo.codec={saved}")
