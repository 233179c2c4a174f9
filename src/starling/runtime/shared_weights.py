"""The newest weights in shared memory: one process writes them, any number read them, nobody waits.

Two copies are written in turn. A reader reads the copy that was finished last and checks it afterwards: it reads again
only if a writer has begun that same copy meanwhile. This relies on stores becoming visible in order, as on x86. The
runtime of the learner publishes after every update (`ProcessesRuntime.step`); an actor reads before every fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from starling.runtime.shared_memory import ALIGN, AnonymousSharedMemory
from starling.types import ArraySpec, NDArray, Progress, Tensor

T = TypeVar("T")
_COUNTS = ArraySpec((2,), np.dtype(np.int64))
_HEADER = ArraySpec((3,), np.dtype(np.float64))  # env steps, updates, fraction: exact up to 2**53
BEGUN, FINISHED = 0, 1


def _state(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in model.state_dict().values()]


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN


def copy_size(model: nn.Module) -> int:
    """Bytes of a model's weights and buffers with their header."""
    return ALIGN + sum(_room(tensor) for tensor in _state(model))


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
                return made  # whole, if perhaps no longer the newest: nobody wrote there meanwhile
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
    """The tensors of a model, and those of both copies."""

    def __init__(self, shared_weights: SharedWeights, model: nn.Module) -> None:
        self.headers: list[NDArray] = []
        self.copies: list[list[Tensor]] = []
        self.mine = _state(model)
        for number in range(2):
            offset = ALIGN + number * shared_weights.size
            self.headers.append(shared_weights.shared_memory.array(_HEADER, offset))
            offset += ALIGN
            tensors = []
            for tensor in self.mine:
                tensors.append(shared_weights.shared_memory.tensor(tensor, offset))
                offset += _room(tensor)
            self.copies.append(tensors)


class WeightWriter:
    """Publishes a model's weights."""

    def __init__(self, shared_weights: SharedWeights, model: nn.Module) -> None:
        self._shared_weights, self._view = shared_weights, _View(shared_weights, model)

    def publish(self, progress: Progress) -> None:
        self._shared_weights.publish(lambda number: self._write(number, progress))

    @torch.no_grad()
    def _write(self, number: int, progress: Progress) -> None:
        view = self._view
        view.headers[number % 2][:] = progress.env_steps, progress.updates, progress.fraction
        for theirs, mine in zip(view.copies[number % 2], view.mine, strict=True):
            theirs.copy_(mine)


class WeightReader:
    """Loads published weights into a model."""

    def __init__(self, shared_weights: SharedWeights, model: nn.Module) -> None:
        self._shared_weights, self._view = shared_weights, _View(shared_weights, model)
        self._known = 0
        self._progress = Progress()

    def refresh(self) -> Progress:
        """Load the newest weights unless they are loaded already; returns the progress they were published with."""
        read = self._shared_weights.newest(self._known, self._read)
        if read is not None:
            self._known, self._progress = read
        return self._progress

    @torch.no_grad()
    def _read(self, number: int) -> tuple[int, Progress]:
        env_steps, updates, fraction = self._view.headers[number % 2].tolist()
        for mine, theirs in zip(self._view.mine, self._view.copies[number % 2], strict=True):
            mine.copy_(theirs)
        return number, Progress(int(env_steps), int(updates), fraction)
