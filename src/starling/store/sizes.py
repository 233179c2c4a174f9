"""How many bytes a table holds and a checkpoint of it takes, known before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from starling import tree
from starling.store.ring import ring_length
from starling.store.spec import TableSpec
from starling.types import Layout, StackSpec

EPISODE = 100
"""Steps between two begins of an episode, where nobody can know them: shorter episodes need more than is said here."""


@dataclass(frozen=True)
class TableBytes:
    """Exact, but for what is kept only at the beginnings of episodes and windows: there it is an upper bound."""

    held: int  # in memory, from the start on
    saved: int  # in a checkpoint


def table_bytes(spec: TableSpec, layout: Layout, rows: int, steps: int) -> TableBytes:
    """What the table of `rows` env rows needs in a run of so many env `steps`."""
    return _ring(spec, layout, rows, steps) if spec.storage == "ring" else _slots(spec, layout)


def _slots(spec: TableSpec, layout: Layout) -> TableBytes:
    item = tree.nbytes(layout.trajectory(spec.length, 1))
    books = 3 * 8  # born, generation, and a slot is listed as free or as live
    return TableBytes(
        held=spec.capacity * (item + books) + _sampler(spec, spec.capacity),
        saved=spec.capacity * (item + books) + _saved_sampler(spec, spec.capacity, spec.capacity),
    )


def _ring(spec: TableSpec, layout: Layout, rows: int, steps: int) -> TableBytes:
    length = ring_length(spec, rows, layout.stack.n if layout.stack else 1)
    used = min(length, steps * (EPISODE + 1) // (EPISODE * rows) + 1)  # a reset between two episodes is a step too
    cells, filled = rows * length, rows * used
    cell, books = _cell(layout), rows * (8 + 8 + 1 + 8)  # head, start, waiting, global row
    rare, rare_saved = _now_and_then(spec, layout, cells), _now_and_then(spec, layout, filled)
    return TableBytes(
        held=cells * cell + books + 8 * rows + rare + _sampler(spec, cells),
        saved=filled * cell + books + rare_saved + _saved_sampler(spec, cells, filled),
    )


def _cell(layout: Layout) -> int:
    """What a ring keeps of every step."""
    shown = sum(_observation(int(leaf.nbytes), path, layout.stack) for path, leaf in tree.items(layout.obs))
    taken = tree.nbytes((layout.action, layout.extras)) + 4 * len(layout.rewards)
    carry = 4 if tree.leaves(layout.carry) else 0  # where its value is, if there is one
    return shown + taken + carry + 1 + 8 + 4  # flags, version, steps of the window


def _observation(size: int, path: str, stack: StackSpec | None) -> int:
    """Of a stack the newest frame, its age, and where the whole is, if it is there."""
    return size if stack is None or stack.path != path else size // stack.n + 2 + 4


def _now_and_then(spec: TableSpec, layout: Layout, cells: int) -> int:
    """Carries where windows begin and whole stacks where episodes do, in arrays that double when they are full."""
    begins = cells // EPISODE + 1
    starts = min(cells, -(-cells // spec.period) + begins)
    stack = layout.stack.path if layout.stack else None
    whole = sum(int(leaf.nbytes) for path, leaf in tree.items(layout.obs) if path == stack)
    return 2 * starts * tree.nbytes(layout.carry) + 2 * begins * whole


def _sampler(spec: TableSpec, slots: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * (slots * 8 // 7) + 1024  # a node for every 8 below it, and what fills up cache lines
    return 2 * 8 * slots  # uniform: members and positions; fifo: slots and uses


def _saved_sampler(spec: TableSpec, slots: int, used: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * slots
    return (2 if spec.sampler == "fifo" else 1) * 8 * used
