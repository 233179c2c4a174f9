"""Functions on trees: nested dicts, tuples, and dataclasses of arrays.

A tree is a leaf, or a dict, tuple or frozen dataclass of trees. A leaf is anything else: a numpy array, a
tensor, an `ArraySpec`. `None`, `Resets`, and the empty dict are trees without leaves.

Between the host and another device all leaves of a tree travel together, in one copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np
import torch

from starling.types import A, ArraySpec, NDArray, Resets, Trajectory

T = TypeVar("T")


_FIELDS: dict[type, tuple[str, ...] | None] = {ArraySpec: None, Resets: ()}
ALIGN = 64  # bytes: of every leaf in a copy


def _fields(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a dataclass; None for a leaf type."""
    if kind not in _FIELDS:
        known = dataclasses.is_dataclass(kind)
        _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind)) if known else None
    return _FIELDS[kind]


def map(fn: Callable[..., Any], tree: T, *others: Any) -> T:
    """Apply `fn` to every leaf of `tree` and the corresponding leaves of `others`; return the tree of results."""
    mapped: T = _map(fn, tree, *others)
    return mapped


def _map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    kind = type(tree)
    if kind is torch.Tensor or kind is np.ndarray:  # fast path, which matters for small networks
        return fn(tree, *others)
    if kind is dict:
        return {key: _map(fn, child, *[other[key] for other in others]) for key, child in tree.items()}
    if kind is tuple:
        return tuple(_map(fn, *children) for children in zip(tree, *others, strict=True))
    if tree is None:
        return None
    names = _fields(kind)
    if names is None:
        return fn(tree, *others)
    if not names:
        return tree
    return kind(**{n: _map(fn, getattr(tree, n), *[getattr(other, n) for other in others]) for n in names})


def items(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, e.g. `a/b/0`."""
    names = _fields(type(tree))
    if isinstance(tree, dict):
        named = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, tuple):
        named = [(str(i), value) for i, value in enumerate(tree)]
    elif names is not None:
        named = [(name, getattr(tree, name)) for name in names]
    elif tree is not None:
        yield prefix, tree
        return
    else:
        return
    for name, value in named:
        yield from items(value, f"{prefix}/{name}" if prefix else name)


def leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in items(tree)]


def nbytes(tree: Any) -> int:
    """Total bytes of all leaves."""
    return sum(int(leaf.nbytes) for leaf in leaves(tree))


def concat(trees: Sequence[T], axis: int) -> T:
    """Concatenate trees of the same structure along an existing axis; leaves are numpy arrays or tensors."""
    if len(trees) == 1:
        return trees[0]

    def join(*parts: Any) -> Any:
        return torch.cat(parts, dim=axis) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, axis=axis)

    return map(join, trees[0], *trees[1:])


def stack(trees: Sequence[T], axis: int = 0) -> T:
    """Stack trees of the same structure along a new axis; leaves are numpy arrays or tensors."""

    def join(*parts: Any) -> Any:
        return torch.stack(parts, dim=axis) if isinstance(parts[0], torch.Tensor) else np.stack(parts, axis=axis)

    return map(join, trees[0], *trees[1:])


def map_trajectory(
    steps: Trajectory[A], by_step: Callable[..., Any], by_row: Callable[..., Any], *others: Trajectory[A]
) -> Trajectory[A]:
    """Map the time-major fields [T, B, ...] of trajectories with `by_step`, the others [B, ...] with `by_row`."""
    fields = {
        name: _map(
            by_row if name in Trajectory.ONCE_A_ROW else by_step,
            getattr(steps, name),
            *[getattr(other, name) for other in others],
        )
        for name in _fields(Trajectory) or ()
    }
    return Trajectory(**fields)


@overload
def to_torch(
    tree: Trajectory[NDArray], device: torch.device | str = "cpu", *, contiguous: bool = False
) -> Trajectory[torch.Tensor]: ...


@overload
def to_torch(tree: T, device: torch.device | str = "cpu", *, contiguous: bool = False) -> T: ...


def to_torch(tree: Any, device: torch.device | str = "cpu", *, contiguous: bool = False) -> Any:
    """Convert numpy leaves to tensors on `device`, without a copy on the CPU; dtypes are kept.

    To another device they are copied together, from pinned memory, and nothing waits for the copy: there the leaves are
    views of one buffer.

    With `contiguous`, views of larger arrays, such as batches that were drawn together, are copied: compiled code is
    recompiled for every new memory layout.
    """
    if torch.device(device).type != "cpu":
        return _upload(tree, torch.device(device))
    return _map(_contiguous if contiguous else torch.from_numpy, tree)


def _contiguous(leaf: NDArray) -> torch.Tensor:
    return torch.from_numpy(leaf).contiguous()


def _upload(tree: Any, device: torch.device) -> Any:
    """Copy all arrays of a tree to a device at once."""
    size = packed_size(tree)
    if not size:
        return tree
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pack(tree, host)
    return unpack(tree, host.to(device, non_blocking=True))


def packed_size(tree: Any) -> int:
    """Bytes of a buffer for all arrays of a tree."""
    return _places([array.nbytes for array in leaves(tree)])[1]


def pack(tree: Any, buffer: torch.Tensor) -> None:
    """Copy all arrays of a tree into a buffer [`packed_size`] uint8 on the CPU."""
    arrays, host = leaves(tree), buffer.numpy()
    for array, start in zip(arrays, _places([array.nbytes for array in arrays])[0], strict=True):
        host[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array


def unpack(tree: Any, data: torch.Tensor) -> Any:
    """The tree with its arrays replaced by views of a copy of the buffer that they were packed into."""
    arrays = leaves(tree)
    tensors = iter(
        data[start : start + array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)
        for array, start in zip(arrays, _places([array.nbytes for array in arrays])[0], strict=True)
    )
    return map(lambda _: next(tensors), tree)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of these sizes begin in one buffer, in bytes, and its size."""
    rooms = [-(-size // ALIGN) * ALIGN for size in sizes]
    ends = np.cumsum([0, *rooms]).tolist()
    return ends[:-1], ends[-1]


@lru_cache(maxsize=64)
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


@lru_cache(maxsize=64)
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def to_numpy(tree: T) -> T:
    """Convert tensor leaves to numpy arrays, without a copy if they are on the CPU.

    From another device they are copied together, and the host waits for it.
    """
    away = [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"]
    if not away:
        return map(_as_numpy, tree)
    arrays = _download(away)
    return map(lambda leaf: arrays[id(leaf)] if id(leaf) in arrays else _as_numpy(leaf), tree)


def _as_numpy(leaf: Any) -> Any:
    return leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else leaf


def _download(tensors: Sequence[torch.Tensor]) -> dict[int, NDArray]:
    """Copy tensors of one device to the host at once; returns arrays by the `id` of their tensors."""
    tensors = sorted(tensors, key=lambda leaf: -leaf.element_size())  # so that each begins at a multiple of its size
    parts = [leaf.detach().flatten().view(torch.uint8) for leaf in tensors]
    data = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu().numpy()
    ends = np.cumsum([part.numel() for part in parts]).tolist()
    return {
        id(leaf): data[end - part.numel() : end].view(_numpy_dtype(leaf.dtype)).reshape(leaf.shape)
        for leaf, part, end in zip(tensors, parts, ends, strict=True)
    }


def spec(tree: T, lead: int = 0) -> T:
    """Return the `ArraySpec` of every leaf, without its first `lead` axes."""

    def describe(leaf: Any) -> ArraySpec:
        array = leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
        return ArraySpec(tuple(array.shape[lead:]), array.dtype)

    return map(describe, tree)


def zeros(specs: T, lead: tuple[int, ...] = ()) -> T:
    """Allocate numpy zeros for a tree of `ArraySpec`, with leading axes `lead`."""
    return map(lambda s: np.zeros(lead + s.shape, s.dtype), specs)
