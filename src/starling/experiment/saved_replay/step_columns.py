"""Convert steps to and from the named columns of an exported replay; see docs/replay-format.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from starling import tree
from starling.experiment.saved_replay.steps import Steps
from starling.replay.columns import as_words
from starling.types import ArraySpec, Layout, NDArray, StackSpec

STACK, STACK_AT = "stack", "stack_at"
_FLAG, _NUMBER = ArraySpec((), np.dtype(np.bool_)), ArraySpec((), np.dtype(np.float32))
_INTEGER, _EXACT = ArraySpec((), np.dtype(np.int64)), ArraySpec((), np.dtype(np.float64))


def step_specs(layout: Layout) -> Steps:
    """Return the `ArraySpec` of every array in `Steps`, for one step."""
    specs: dict[str, Any] = {
        "env_index": _INTEGER,
        "obs": layout.obs,
        "first": _FLAG,
        "valid": _FLAG,
        "action": layout.action,
        "rewards": dict.fromkeys(layout.rewards, _NUMBER),
        "terminated": _FLAG,
        "truncated": _FLAG,
        "extras": layout.extras,
        "policy_version": _INTEGER,
        "priority": _EXACT,
        "carry": layout.carry,
    }
    return Steps(**specs)


def stacked_column(stack: StackSpec) -> str:
    return f"obs/{stack.path}" if stack.path else "obs"


def to_columns(steps: Steps, stack: StackSpec | None) -> dict[str, NDArray]:
    """Convert N steps to columns: carries only if an item begins, and of stacks the newest frame and few whole ones."""
    columns = dict(tree.items(steps))
    begins = steps.priority > 0
    columns |= {f"carry/{path}": leaf[begins] for path, leaf in tree.items(steps.carry)}
    if stack is not None:
        name = stacked_column(stack)
        whole = _whole(columns[name], steps.valid, stack)
        columns |= {
            STACK_AT: np.nonzero(whole)[0],
            STACK: columns[name][whole],
            name: newest_frames(columns[name], stack),
        }
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def check_columns(columns: dict[str, NDArray], specs: Steps, stack: StackSpec | None, count: int) -> None:
    """Raise ValueError unless these are columns of `count` steps with the right dtypes and shapes and finite values.

    Extras may be infinite, e.g. log 0.
    """
    for name, spec in tree.items(specs):
        column = columns.get(name)
        if column is None:
            raise ValueError(f"there is no column {name}")
        shape: tuple[int, ...] = (count, *spec.shape)
        if name.startswith("carry/"):
            shape = (int((columns["priority"] > 0).sum()), *spec.shape)
        elif stack is not None and name == stacked_column(stack):
            _check_stacks(columns, shape, stack)
            shape = (*shape[: 1 + stack.axis], shape[1 + stack.axis] // stack.n, *shape[2 + stack.axis :])
        if column.shape != shape or column.dtype != spec.dtype:
            raise ValueError(f"{name} is {column.dtype} {column.shape}, not {spec.dtype} {shape}")
        if column.dtype.kind == "f":
            odd = np.isnan(column) if name.startswith("extras") else ~np.isfinite(column)
            if odd.any():
                raise ValueError(f"{name} has numbers that are not finite")
    if (columns["priority"] < 0).any() or (columns["env_index"] < 0).any() or (columns["policy_version"] < 0).any():
        raise ValueError("a priority, env index, or policy version is negative")


def _check_stacks(columns: dict[str, NDArray], shape: tuple[int, ...], stack: StackSpec) -> None:
    """Check the whole stacks and their positions, for observations of `shape` [N, ...]."""
    whole, at = columns.get(STACK), columns.get(STACK_AT)
    if whole is None or at is None:
        raise ValueError("there are no whole stacks")
    if at.dtype != np.int64 or at.ndim != 1 or len(at) == 0 or at[0] != 0 or (np.diff(at) <= 0).any():
        raise ValueError(f"{STACK_AT} does not rise from 0")
    if at[-1] >= shape[0] or whole.shape != (len(at), *shape[1:]):
        raise ValueError(f"{STACK} is {whole.shape}, not {(len(at), *shape[1:])}")
    if whole.dtype != columns[stacked_column(stack)].dtype or not np.isfinite(whole).all():
        raise ValueError(f"{STACK} has other numbers than the frames")


def from_columns(columns: dict[str, NDArray], specs: Steps, stack: StackSpec | None) -> Steps:
    """Convert columns back to steps; the inverse of `to_columns`."""
    begins = columns["priority"] > 0
    names = iter([name for name, _ in tree.items(specs)])

    def take(spec: ArraySpec) -> NDArray:
        name = next(names)
        if stack is not None and name == stacked_column(stack):
            return _restack(columns[name], columns[STACK_AT], columns[STACK], stack)
        if name.startswith("carry/"):
            values = np.zeros((len(begins), *spec.shape), spec.dtype)
            values[begins] = columns[name]
            return values
        return columns[name]

    steps: Steps = tree.map(take, specs)
    return steps


def _frame(leaf: NDArray, stack: StackSpec) -> int:
    """Return the size of one frame of stacks [N, ...] along the stack's axis."""
    return int(leaf.shape[1 + stack.axis]) // stack.n


def _part(leaf: NDArray, stack: StackSpec, part: slice) -> NDArray:
    """Slice [N, ...] along the stack's axis."""
    index: list[slice] = [slice(None)] * leaf.ndim
    index[1 + stack.axis] = part
    return leaf[tuple(index)]


def newest_frames(leaf: NDArray, stack: StackSpec) -> NDArray:
    """Return the newest frame of each stack [N, ...]; the stack's axis is kept."""
    return _part(leaf, stack, slice(-_frame(leaf, stack), None))


def _whole(leaf: NDArray, valid: NDArray, stack: StackSpec) -> NDArray:
    """Mask [N] of stacks that are not the previous one shifted by a frame: e.g. the first, or after a stretch's end."""
    frame = _frame(leaf, stack)
    late, early = _part(leaf, stack, slice(None, -frame)), _part(leaf, stack, slice(frame, None))
    whole = np.ones(len(leaf), bool)
    whole[1:] = ~valid[:-1] | (as_words(late[1:], 1) != as_words(early[:-1], 1)).any(axis=1)
    return whole


def _restack(newest: NDArray, at: NDArray, whole: NDArray, stack: StackSpec) -> NDArray:
    """Rebuild stacks [N, ...] from newest frames and the whole stacks at positions `at` [k], which start with 0."""
    out = np.empty((len(newest), *whole.shape[1:]), newest.dtype)
    frame = _frame(whole, stack)
    out[at] = whole
    begun = set(at.tolist())
    for i in range(len(out)):
        if i not in begun:
            _part(out[i : i + 1], stack, slice(None, -frame))[:] = _part(out[i - 1 : i], stack, slice(frame, None))
            _part(out[i : i + 1], stack, slice(-frame, None))[:] = newest[i]
    return out
