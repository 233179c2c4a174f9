"""The newest weights in shared memory: one process writes them, any number read them, nobody waits.

Two copies are written in turn. A reader reads the copy that was finished last and checks it afterwards: it reads again
only if a writer has begun that same copy meanwhile. This relies on stores becoming visible in order, as on x86. The
runtime of the learner publishes after every update (`ProcessesRuntime.step`); an actor reads before every fragment,
when the fragment's first action is already computed (`PolicyCore._act_one`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from starling.runtime.acting_weights import is_due
from starling.runtime.shared_memory import ALIGN, AnonymousSharedMemory
from starling.types import ArraySpec, NDArray, Progress, Tensor

T = TypeVar("T")
_COUNTS = ArraySpec((2,), np.dtype(np.int64))
_HEADER = ArraySpec((3,), np.dtype(np.float64))  # env steps, updates, fraction: exact up to 2**53
BEGUN, FINISHED = 0, 1


def _state(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in model.state_dict().values()]


def _aligned_bytes(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN


def copy_size(model: nn.Module) -> int:
    """Bytes of a model's weights and buffers with their header."""
    return ALIGN + sum(_aligned_bytes(tensor) for tensor in _state(model))


class SharedWeights:
    """Shared memory for two copies of the weights and buffers of one model."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.shared_memory = AnonymousSharedMemory(ALIGN + 2 * size)

    @property
    def counts(self) -> NDArray:
        return self.shared_memory.array(_COUNTS, 0)

    def bytes_of(self, number: int) -> NDArray:
        """The bytes of a copy, its header first, as they are sent to another machine."""
        return self.shared_memory.array(ArraySpec((self.size,), np.dtype(np.uint8)), ALIGN + number % 2 * self.size)

    def publish(self, write: Callable[[int], None]) -> None:
        """Let `write` fill the older copy, which then becomes the newest."""
        counts = self.counts
        number = int(counts[FINISHED]) + 1
        counts[BEGUN] = number
        write(number)
        counts[FINISHED] = number

    def newest(self, known: int, copy: Callable[[int], T]) -> T | None:
        """Apply `copy` to the newest copy; None if its number is `known`."""
        counts = self.counts
        while (number := int(counts[FINISHED])) != known:
            made = copy(number)
            if counts[BEGUN] < number + 2:
                return made  # not torn, since nobody wrote there meanwhile; it may already be outdated
        return None

    def accept(self, data: NDArray) -> None:
        """Publish the bytes of a copy from another machine.

        Raises:
            ValueError: They are of another size, or their header holds no numbers.
        """
        if data.shape != (self.size,) or data.dtype != np.uint8:
            raise ValueError(f"weights of {data.dtype} {list(data.shape)} instead of {self.size} bytes")
        header = np.frombuffer(data[: _HEADER.nbytes].tobytes(), _HEADER.dtype)
        if not np.isfinite(header).all():
            raise ValueError("weights whose header holds no numbers")
        self.publish(lambda number: np.copyto(self.bytes_of(number), data))


class _View:
    """The tensors of a model, and those of both copies.

    A model on another device than the CPU is copied by way of a buffer there with the bytes of a copy, all at once.
    """

    def __init__(self, shared_weights: SharedWeights, model: nn.Module) -> None:
        self.headers: list[NDArray] = []
        self.copies: list[list[Tensor]] = []
        self.mine = _state(model)
        self._staged: list[Tensor] | None = None
        if (device := self.mine[0].device).type != "cpu":
            self._shared_weights = shared_weights
            self._buffer = torch.empty(shared_weights.size, dtype=torch.uint8, device=device)
            self._staged = self._tensors(self._buffer)
        for number in range(2):
            offset = ALIGN + number * shared_weights.size
            self.headers.append(shared_weights.shared_memory.array(_HEADER, offset))
            offset += ALIGN
            tensors = []
            for tensor in self.mine:
                tensors.append(shared_weights.shared_memory.tensor(tensor, offset))
                offset += _aligned_bytes(tensor)
            self.copies.append(tensors)

    def _tensors(self, data: Tensor) -> list[Tensor]:
        """Views of the bytes of a copy, in the order of `mine`."""
        found, offset = [], ALIGN
        for tensor in self.mine:
            part = data[offset : offset + tensor.numel() * tensor.element_size()]
            found.append(part.view(tensor.dtype).view(tensor.shape))
            offset += _aligned_bytes(tensor)
        return found

    @torch.no_grad()
    def write(self, number: int) -> None:
        """Copy the model's tensors to shared memory."""
        if self._staged is None:
            for theirs, mine in zip(self.copies[number % 2], self.mine, strict=True):
                theirs.copy_(mine)
            return
        for staged, mine in zip(self._staged, self.mine, strict=True):
            staged.copy_(mine)
        torch.from_numpy(self._shared_weights.bytes_of(number))[ALIGN:].copy_(self._buffer[ALIGN:])

    @torch.no_grad()
    def read(self, number: int) -> None:
        """Copy shared memory to the model's tensors."""
        theirs = self.copies[number % 2]
        if self._staged is not None:
            self._buffer.copy_(torch.from_numpy(self._shared_weights.bytes_of(number)))
            theirs = self._staged
        for mine, value in zip(self.mine, theirs, strict=True):
            mine.copy_(value)


class WeightWriter:
    """Publishes a model's weights."""

    def __init__(self, shared_weights: SharedWeights, model: nn.Module) -> None:
        self._shared_weights, self._view = shared_weights, _View(shared_weights, model)

    def publish(self, progress: Progress) -> None:
        self._shared_weights.publish(lambda number: self._write(number, progress))

    def _write(self, number: int, progress: Progress) -> None:
        self._view.headers[number % 2][:] = progress.env_steps, progress.updates, progress.fraction
        self._view.write(number)


class WeightReader:
    """Loads published weights into a model, `every` so many updates after those that it loaded last."""

    def __init__(self, shared_weights: SharedWeights, model: nn.Module, every: int = 1) -> None:
        self._every = every
        self._shared_weights, self._view = shared_weights, _View(shared_weights, model)
        self._known = 0
        self._progress = Progress()

    def refresh(self) -> Progress:
        """Load the newest weights if they are due; returns the progress that the loaded ones were published with."""
        read = self._shared_weights.newest(self._known, self._read)
        if read is not None:
            self._known, self._progress = read
        return self._progress

    def _read(self, number: int) -> tuple[int, Progress]:
        env_steps, updates, fraction = self._view.headers[number % 2].tolist()
        progress = Progress(int(env_steps), int(updates), fraction)
        if self._known and self._every > 1 and not is_due(progress, self._progress, self._every):
            return number, self._progress
        self._view.read(number)
        return number, progress
