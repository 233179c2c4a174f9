"""Storage of a ring's observations in memory: plain arrays, or chunks of a few steps compressed with zstd.

Read `columns` first: it defines the words.
"""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any, Protocol

import numpy as np

from starling.errors import UserError, to_count
from starling.replay.copying import WORTH_A_THREAD, in_threads, take
from starling.replay.grid import LEAST_BYTES, Blocks, Grid
from starling.replay.spec import Codec
from starling.state_io import Joined, Segmented
from starling.types import ArraySpec, NDArray

CHUNK = 8
LEVEL = 1
"""Number of cells that are compressed together, and zstd's level. Measured on random play of six Atari games, in GB per
million frames and microseconds to write and to read a chunk: 4 cells 0.19, 29, 10; 8 cells 0.14, 55, 16; 16 cells 0.11,
82, 24 (and a sequence of seven frames then reads more than it needs). Levels 2 and 3 save 1 % and take up to a third
longer."""
GROUP_BYTES = 2**25
"""Uncompressed bytes of the chunks that a checkpoint stores in one file."""
SMALLEST = 1024
"""Smallest value in bytes that is worth compressing: below, the overhead of one object per chunk is larger."""


class Cells(Protocol):
    """Stores one value for every cell of a grid."""

    def write(self, cells: NDArray, values: NDArray) -> None:
        """Write `values` [T, B, ...] to `cells` [T, B]; each column lies in one ring and is ordered by time."""
        ...

    def read(self, cells: NDArray) -> NDArray:
        """Copy the values of `cells` [...]: [..., value]."""
        ...

    def get_state(self, used: int) -> Any: ...

    def set_state(self, state: Any) -> None: ...


class Plain:
    """Uncompressed values in one array."""

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._grid = grid
        self._values = np.zeros((grid.num_cells, *spec.shape), spec.dtype)
        self._blocks = Blocks(self._values, grid)

    def write(self, cells: NDArray, values: NDArray) -> None:
        self._blocks.touch(cells)
        self._values[cells] = values

    def read(self, cells: NDArray) -> NDArray:
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
    """Compressed chunks of consecutive cells; one chunk per ring is open, that is uncompressed and writable.

    When a ring wraps around, a newly opened chunk still holds steps of the last round that are not overwritten yet, so
    it is decompressed first.
    """

    def __init__(self, spec: ArraySpec, grid: Grid) -> None:
        self._grid, self._spec, self._packer = grid, spec, Packer()
        self._chunks = -(-grid.length // CHUNK)  # per ring
        self._closed = [b""] * (grid.rings * self._chunks)  # b"": never written, or open
        self._open = np.zeros((grid.rings, CHUNK, *spec.shape), spec.dtype)
        self._which = np.arange(grid.rings) * self._chunks  # [rings] index of the open chunk
        self._group = max(1, GROUP_BYTES // (CHUNK * spec.nbytes))  # chunks per saved segment
        self._saved: dict[int, Joined] = {}  # groups that have not changed since they were saved

    def write(self, cells: NDArray, values: NDArray) -> None:
        rings, chunks, places = self._find(cells)
        for t in range(len(cells)):
            for b in np.nonzero(chunks[t] != self._which[rings[t]])[0]:
                self._turn(int(rings[t, b]), int(chunks[t, b]))
            self._open[rings[t], places[t]] = values[t]

    def _find(self, cells: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Ring, chunk, and position in the chunk of each of `cells` [...]."""
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
        return _unpacker().unpack(packed, (CHUNK, *self._spec.shape), self._spec.dtype)

    def read(self, cells: NDArray) -> NDArray:
        flat = cells.ravel()
        rings, chunks, places = self._find(flat)
        order = np.argsort(chunks, kind="stable")  # so that every chunk is decompressed once
        begins = np.nonzero(np.diff(chunks[order], prepend=-1))[0].tolist()
        out = np.empty((len(flat), *self._spec.shape), self._spec.dtype)
        spans = list(itertools.pairwise([*begins, len(flat)]))

        def unpack(first: int, last: int) -> None:
            for begin, end in spans[first:last]:
                mine = order[begin:end]
                out[mine] = self._chunk(int(rings[mine[0]]), int(chunks[mine[0]]))[places[mine]]

        if len(spans) * CHUNK * self._spec.nbytes < WORTH_A_THREAD:
            unpack(0, len(spans))
        else:
            in_threads(unpack, len(spans))
        return out.reshape(*cells.shape, *self._spec.shape)

    def _chunk(self, ring: int, chunk: int) -> NDArray:
        """Values [CHUNK, ...] of a chunk; arbitrary for unwritten cells."""
        packed = self._closed[chunk]
        return self._unpack(packed) if packed else self._open[ring]

    def get_state(self, used: int) -> dict[str, Any]:
        """Compressed chunks in groups, whatever `used` is: a chunk is only closed after it was written."""
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
        """Reject a state that does not fit these rings, before any segment is read; returns its chunks per segment."""
        group, sizes, which = to_count(state["group"]), _sizes(state["sizes"]), state["which"]
        if group < 1 or len(sizes) != self._grid.rings * self._chunks:
            raise _broken(f"{len(sizes)} chunks in groups of {group}, not {self._grid.rings * self._chunks} chunks")
        if sizes.max() > 2 * CHUNK * self._spec.nbytes + 64:
            raise _broken(f"a chunk of {sizes.max():,} bytes, which has {CHUNK * self._spec.nbytes:,} unpacked")
        expected = np.add.reduceat(sizes, np.arange(0, len(sizes), group)).tolist()
        if [segment.size for segment in state["closed"].parts] != expected:
            raise _broken("segments of other sizes than their chunks")
        if which.dtype.kind not in "iu" or not np.array_equal(which // self._chunks, np.arange(self._grid.rings)):
            raise _broken("the open chunk of a ring lies in another ring")
        if sizes[which].any():
            raise _broken("a chunk is both open and closed")
        return group


class Packer:
    """Compresses arrays to bytes and back; not thread-safe."""

    def __init__(self) -> None:
        import zstandard  # loaded only if something is compressed

        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._size_of, self._error = zstandard.frame_content_size, zstandard.ZstdError

    def pack(self, values: NDArray) -> bytes:
        packed = self._compressor.compress(np.ascontiguousarray(values).data)
        return memoryview(packed).tobytes()  # a copy: zstandard's result keeps its worst-case buffer alive

    def unpack(self, packed: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        """Decompress to a read-only array; never allocates more than `shape` and `dtype` need."""
        size = math.prod(shape) * dtype.itemsize
        self.check(packed, size)
        try:
            found = self._decompressor.decompress(packed, max_output_size=size, allow_extra_data=False)
        except self._error as error:
            raise _broken(str(error)) from None
        return np.frombuffer(found, dtype).reshape(shape)

    def check(self, packed: bytes, size: int) -> None:
        """Reject data whose header does not declare a decompressed size of `size` bytes; reads only the header."""
        try:
            told = self._size_of(packed)
        except self._error as error:
            raise _broken(str(error)) from None
        if told != size:
            raise _broken(f"a chunk unpacks to {'an unknown number of' if told < 0 else told} bytes, not {size}")


_of_thread = threading.local()


def _unpacker() -> Packer:
    """This thread's packer."""
    if not hasattr(_of_thread, "packer"):
        _of_thread.packer = Packer()
    packer: Packer = _of_thread.packer
    return packer


def joined(packed: list[bytes]) -> dict[str, NDArray]:
    """Join byte strings of different lengths into arrays, for a state."""
    return {"bytes": np.frombuffer(b"".join(packed), np.uint8), "sizes": np.array([*map(len, packed)], np.int32)}


def parted(state: dict[str, NDArray]) -> list[bytes]:
    """Split the arrays of `joined` into byte strings."""
    everything, sizes = state["bytes"].tobytes(), _sizes(state["sizes"])
    if sizes.sum() != len(everything):
        raise _broken(f"{sizes.sum():,} bytes in pieces, not {len(everything):,}")
    ends = itertools.accumulate(sizes.tolist(), initial=0)
    return [everything[begin:end] for begin, end in itertools.pairwise(ends)]


def _sizes(saved: NDArray) -> NDArray:
    """Saved sizes [n] as int64; rejects anything but non-negative integers."""
    if saved.ndim != 1 or saved.dtype.kind not in "iu" or (saved.astype(np.int64) < 0).any():
        raise _broken("sizes that are not valid")
    return saved.astype(np.int64)


def pays(codec: Codec, size: int) -> bool:
    """Return True if values of `size` bytes are compressed."""
    return codec == "zstd" and size >= SMALLEST


def make_cells(codec: Codec, spec: ArraySpec, grid: Grid) -> Cells:
    return Chunked(spec, grid) if pays(codec, spec.nbytes) else Plain(spec, grid)


def _broken(problem: str) -> UserError:
    return UserError(f"the compressed data of this replay is damaged: {problem}; use another checkpoint")


def _other_codec(saved: str, here: str) -> UserError:
    return UserError(f"this replay was saved with codec {saved}, not {here}: continue with algo.codec={saved}")
