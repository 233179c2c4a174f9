"""Shape checks at the start of every op: a wrong broadcast would be a silent bug."""

from __future__ import annotations

from functools import lru_cache

import torch

from starling.types import Tensor

Shaped = Tensor | float | None
"""A value to check; a plain number or None fits any shape."""

_Shape = tuple[int, ...]
_Axis = tuple[str, int]  # its letter and the number added to it: "T+1" is ("T", 1)


def check_shapes(op: str, axes: str = "", /, **named: Shaped | tuple[Shaped, str]) -> None:
    """Raise ValueError unless every tensor fits `axes`, or its own axes if given as (tensor, axes).

    An axis is a letter `T`, a letter plus a number `T+1`, or a number `2`; a leading `...` stands for any axes.
    Examples: `"T B"`, `"... A"`.
    """
    if torch.compiler.is_compiling():  # the compiler checks shapes itself, and cannot trace the cache
        return
    shapes = []
    for name, value in named.items():
        tensor, own = value if isinstance(value, tuple) else (value, axes)
        if isinstance(tensor, Tensor):
            shapes.append((name, tensor.shape, own))
    complaint = _complaint(tuple(shapes))  # cached by shapes, so a repeated call is only a lookup
    if complaint is not None:
        raise ValueError(f"{op}: {complaint}")


@lru_cache(maxsize=1024)
def _complaint(named: tuple[tuple[str, _Shape, str], ...]) -> str | None:
    """Describe the first tensor that does not fit the ones before it; None if all fit."""
    sizes: dict[str, _Shape] = {}  # of every axis seen; one number, or several for `...`
    owners: dict[str, str] = {}  # the tensor in which each axis was seen first
    for name, shape, words in named:
        axes = _parse(words)
        found = _split(shape, axes)
        if found is None or any(_expected(letter, sizes) not in (None, size) for letter, size in found):
            return f"{name} has shape {tuple(shape)}, expected {_wanted(words, axes, sizes, owners)}"
        for letter, size in found:
            sizes.setdefault(letter, size)
            owners.setdefault(letter, name)
    return None


def _parse(words: str) -> tuple[_Axis, ...]:
    parts = (word.partition("+") for word in words.split())
    return tuple((letter, int(extra or 0)) for letter, _, extra in parts)


def _split(shape: _Shape, axes: tuple[_Axis, ...]) -> list[tuple[str, _Shape]] | None:
    """Every axis with its size, minus the number added to it; None if the number of axes does not match."""
    leading = axes[:1] == (("...", 0),)
    named = axes[leading:]
    front = len(shape) - len(named)
    if front < 0 or (front > 0 and not leading):
        return None
    found = [("...", tuple(shape[:front]))] if leading else []
    return found + [(letter, (size - extra,)) for (letter, extra), size in zip(named, shape[front:], strict=True)]


def _expected(letter: str, sizes: dict[str, _Shape]) -> _Shape | None:
    return (int(letter),) if letter.isdigit() else sizes.get(letter)


def _wanted(words: str, axes: tuple[_Axis, ...], sizes: dict[str, _Shape], owners: dict[str, str]) -> str:
    """Describe the expected axes, with their known sizes and the tensors that determined them."""
    numbers: list[str] = []
    for letter, extra in axes:
        size = _expected(letter, sizes)
        numbers += [letter] if size is None else [str(n + extra) for n in size]
    whose = " and ".join(dict.fromkeys(owners[letter] for letter, _ in axes if letter in owners))
    comma = "," if len(numbers) == 1 else ""
    return f"[{', '.join(words.split())}]" + (f" = ({', '.join(numbers)}{comma}) as {whose}" if whose else "")
