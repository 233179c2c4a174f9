"""Anonymous shared memory: the kernel frees it when the last process that maps it ends."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any, TypeVar

import numpy as np
import torch

from starling import tree
from starling.types import ArraySpec, NDArray, Tensor

T = TypeVar("T")
ALIGN = 64


def size_of(specs: Any) -> int:
    """Bytes that the arrays of a tree of `ArraySpec` take in shared memory."""
    return sum(_aligned(spec.nbytes) for spec in tree.leaves(specs))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class AnonymousSharedMemory:
    """Shared memory without a name; a starting process gets it as a file descriptor."""

    def __init__(self, size: int) -> None:
        self._attach(_anonymous_file(max(size, ALIGN)), max(size, ALIGN))

    def _attach(self, fd: int, size: int) -> None:
        self._fd, self.size = fd, size
        self._map = mmap.mmap(fd, size)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._fd), self.size

    def __setstate__(self, state: Any) -> None:
        fd, size = state
        self._attach(fd.detach(), size)

    def array(self, spec: ArraySpec, offset: int) -> NDArray:
        """The array at `offset`."""
        count = int(np.prod(spec.shape, dtype=np.int64))
        return np.frombuffer(self._map, spec.dtype, count, offset).reshape(spec.shape)

    def arrays(self, specs: T, offset: int = 0) -> T:
        """The arrays of a tree, one after the other from `offset` on; see `size_of`."""

        def place(spec: ArraySpec) -> NDArray:
            nonlocal offset
            array = self.array(spec, offset)
            offset += _aligned(spec.nbytes)
            return array

        return tree.map(place, specs)

    def tensor(self, like: Tensor, offset: int) -> Tensor:
        """A tensor at `offset` of the same shape and dtype as `like`, on the CPU."""
        if like.numel() == 0:
            return torch.empty(like.shape, dtype=like.dtype)
        return torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)

    def close(self) -> None:
        """Close the descriptor; the memory is freed with the last array that uses it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class SharedBytes:
    """Bytes that one process writes for another, in anonymous memory; each write replaces the one before."""

    def __init__(self, data: bytes = b"") -> None:
        self._fd = _anonymous_file(0)
        self.write(data)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._fd = state.detach()

    def write(self, data: bytes) -> None:
        os.ftruncate(self._fd, len(data))
        done = 0
        while done < len(data):  # the system takes some 2 GB at a time
            done += os.pwrite(self._fd, memoryview(data)[done:], done)

    def read(self) -> bytes:
        parts: list[bytes] = []
        while part := os.pread(self._fd, 2**30, sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("starling")
    else:
        with tempfile.TemporaryFile() as file:  # has no name any more once it is open
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
