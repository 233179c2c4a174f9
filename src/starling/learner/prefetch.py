"""Copies the next batch to a GPU while the GPU still computes with the present one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from starling import tree
from starling.types import NDArray, Sample, Tensor, Trajectory

SLOTS = 2
"""Buffers in pinned memory: one is filled while the copy from the other may still be under way."""
Steps = tuple[Trajectory[NDArray], NDArray]
"""The steps of a batch, and the table of each row."""


@dataclass
class _Slot:
    """A buffer in pinned memory, and the event that its last copy is done."""

    host: Tensor
    copied: Any = None


@dataclass(frozen=True)
class _OnTheWay:
    """Arrays that are being copied, and the event that they have arrived."""

    trajectory: Trajectory[NDArray]  # of the sample that they belong to
    arrays: Steps
    data: Tensor
    arrived: Any


class Prefetch:
    """One packed copy per batch, on a stream of its own, so that it runs beside the kernels of an update."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._slots = [_Slot(torch.empty(0, dtype=torch.uint8)) for _ in range(SLOTS)]
        self._next: _OnTheWay | None = None

    def begin(self, sample: Sample, arrays: Steps) -> None:
        """Begin to copy the arrays of a batch."""
        slot = self._slots[0]
        self._slots.reverse()
        if slot.copied is not None:
            slot.copied.synchronize()  # done long ago: it was for the batch before the present one
        size = tree.packed_size(arrays)
        if len(slot.host) < size:
            slot.host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host = slot.host[:size]
        tree.pack(arrays, host)
        with self._module.stream(self._stream):
            data = host.to(self._device, non_blocking=True)
        slot.copied = self._module.Event()
        slot.copied.record(self._stream)
        self._next = _OnTheWay(sample.trajectory, arrays, data, slot.copied)

    def take(self, sample: Sample) -> Any:
        """The tensors of a batch if it was the last to be copied; kernels wait for them, the host does not."""
        found, self._next = self._next, None
        if found is None or found.trajectory is not sample.trajectory:
            return None
        current = self._module.current_stream(self._device)
        current.wait_event(found.arrived)
        found.data.record_stream(current)  # its memory must not be given away before these kernels are done
        return tree.unpack(found.arrays, found.data)
