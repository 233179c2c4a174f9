"""Shapes, checked first in every op: a wrong broadcast is a silent bug, a wrong shape is a clear line."""

from __future__ import annotations

from functools import lru_cache

import torch

from starling.types import Tensor

Shaped = Tensor | float | None
"""What is checked; a plain number or None fits anything."""

_Shape = tuple[int, ...]
_Axis = tuple[str, int]  # its letter, and what is added to it: "T+1" is ("T", 1)


def check_shapes(op: str, axes: str = "", /, **named: Shaped | tuple[Shaped, str]) -> None:
    """Raise ValueError unless every tensor fits `axes`, or those that come with it.

    Axes are `T`, one more `T+1`, a number `2`, and `...` in front: `"T B"`, `"... A"`.
    """
    if torch.compiler.is_compiling():  # which checks shapes as well, and cannot follow how they are remembered here
        return
    shapes = []
    for name, value in named.items():
        tensor, own = value if isinstance(value, tuple) else (value, axes)
        if isinstance(tensor, Tensor):
            shapes.append((name, tensor.shape, own))
    complaint = _complaint(tuple(shapes))  # remembered by shapes, so that a call that was right before is a look-up
    if complaint is not None:
        raise ValueError(f"{op}: {complaint}")


@lru_cache(maxsize=1024)
def _complaint(named: tuple[tuple[str, _Shape, str], ...]) -> str | None:
    """What is wrong with the first tensor that does not fit those before it, or None."""
    sizes: dict[str, _Shape] = {}  # of every axis seen; one number, or any many of them for `...`
    owners: dict[str, str] = {}  # which tensor it was seen in first
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
    """Every axis with its size, less what is added; None if there are too few or too many."""
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
    """The axes, and what they should be and because of whom, as far as that is known."""
    numbers: list[str] = []
    for letter, extra in axes:
        size = _expected(letter, sizes)
        numbers += [letter] if size is None else [str(n + extra) for n in size]
    whose = " and ".join(dict.fromkeys(owners[letter] for letter, _ in axes if letter in owners))
    comma = "," if len(numbers) == 1 else ""
    return f"[{', '.join(words.split())}]" + (f" = ({', '.join(numbers)}{comma}) as {whose}" if whose else "")
