"""How many bytes a table holds and a checkpoint of it takes, known before it is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starling import tree
from starling.replay.blocks import LEAST_BYTES
from starling.replay.codec import CHUNK, pays
from starling.replay.ring import ring_length
from starling.replay.spec import TableSpec
from starling.types import ArraySpec, Layout

EPISODE = 100
"""Steps between two begins of an episode, where nobody can know them: shorter episodes need more than is said here."""

PACKED = 1 / 12
"""Share of their size that bytes are assumed to have after zstd, which nobody can know before they are seen: random
play of Atari games has 1/100 to 1/32. Numbers of other kinds are assumed to stay as large as they are."""
MEANWHILE = 1 / 4
"""Share of what goes to disk without a copy that is assumed to be overwritten, and so copied, before it is there."""
OBJECT = 64
"""Bytes of memory around each compressed value; those in a dictionary have as much once more."""


@dataclass(frozen=True)
class TableBytes:
    """Exact, but for what is kept only at the beginnings of episodes and windows: there it is an upper bound.

    Of what is compressed it is an estimate.
    """

    held: int  # in memory, from the start on
    saved: int  # in a checkpoint
    copied: int  # in memory, while it is saved


def table_bytes(spec: TableSpec, layout: Layout, rows: int, steps: int) -> TableBytes:
    """What the table of `rows` env rows needs in a run of so many env `steps`."""
    return _ring(spec, layout, rows, steps) if spec.storage == "ring" else _slots(spec, layout)


def most_saved(spec: TableSpec, layout: Layout, rows: int) -> int:
    """Bytes of a table in a checkpoint, at the very most: every step begins an episode, and nothing compresses."""
    books = 128  # a cell's share of flags, versions, windows, and the sampler
    if spec.storage == "slots":
        return spec.capacity * (tree.nbytes(layout.trajectory(spec.length, 1)) + books)
    kept_once = tree.nbytes((layout.action, layout.extras)) + 4 * len(layout.rewards) + books
    cell = 4 * tree.nbytes(layout.obs) + 2 * tree.nbytes(layout.carry) + kept_once  # arrays that grow are half empty
    stack = layout.stack.n if layout.stack else 1
    return rows * (ring_length(spec, rows, stack) + CHUNK) * cell


def _slots(spec: TableSpec, layout: Layout) -> TableBytes:
    item = tree.nbytes(layout.trajectory(spec.length, 1))
    books = 3 * 8  # born, generation, and a slot is listed as free or as live
    saved = spec.capacity * (item + books) + _saved_sampler(spec, spec.capacity, spec.capacity)
    return TableBytes(spec.capacity * (item + books) + _sampler(spec, spec.capacity), saved, copied=saved)


def _ring(spec: TableSpec, layout: Layout, rows: int, steps: int) -> TableBytes:
    length = ring_length(spec, rows, layout.stack.n if layout.stack else 1)
    used = min(length, steps * (EPISODE + 1) // (EPISODE * rows) + 1)  # a reset between two episodes is a step too
    cells, filled = rows * length, rows * used
    leaves = [_leaf(spec, layout, path, leaf, cells) for path, leaf in tree.items(layout.obs)]
    cell, books = _cell(layout, leaves), rows * (8 + 8 + 1 + 8)  # head, start, waiting, global row
    books += rows * sum(leaf.opened for leaf in leaves)
    rare, rare_saved = (_now_and_then(spec, layout, leaves, count) for count in (cells, filled))
    saved = filled * cell + books + rare_saved + _saved_sampler(spec, cells, filled)
    in_segments = filled * sum(leaf.in_segments for leaf in leaves)
    return TableBytes(
        held=cells * cell + books + 8 * rows + rare + _sampler(spec, cells),
        saved=saved,
        copied=saved - int((1 - MEANWHILE) * in_segments),
    )


@dataclass(frozen=True)
class _Leaf:
    """Bytes of one observation leaf in a ring."""

    cell: int  # of every step
    whole: int  # where an episode begins
    opened: int  # of every env row
    in_segments: int  # of every step: goes to disk from where it is


def _leaf(spec: TableSpec, layout: Layout, path: str, leaf: ArraySpec, cells: int) -> _Leaf:
    n = layout.stack.n if layout.stack is not None and layout.stack.path == path else 0
    size = leaf.nbytes // (n or 1)  # of a stack the newest frame
    age = 2 if n else 0
    if not pays(spec.codec, size):
        owner = 4 if n else 0  # where the whole stack is, if it is there
        whole = 2 * leaf.nbytes if n else 0  # an array that doubles when it is full
        return _Leaf(size + age + owner, whole, 0, size if size * cells >= LEAST_BYTES else 0)
    share = PACKED if leaf.dtype == np.uint8 else 1.0
    whole = int(leaf.nbytes * share) + 2 * OBJECT if n else 0
    return _Leaf(int(size * share) + OBJECT // CHUNK + age, whole, CHUNK * size + 8, int(size * share))


def _cell(layout: Layout, leaves: list[_Leaf]) -> int:
    """What a ring keeps of every step."""
    taken = tree.nbytes((layout.action, layout.extras)) + 4 * len(layout.rewards)
    carry = 4 if tree.leaves(layout.carry) else 0  # where its value is, if there is one
    return sum(leaf.cell for leaf in leaves) + taken + carry + 1 + 8 + 4  # flags, version, steps of the window


def _now_and_then(spec: TableSpec, layout: Layout, leaves: list[_Leaf], cells: int) -> int:
    """Carries where windows begin, in an array that doubles when it is full, and whole stacks where episodes do."""
    begins = cells // EPISODE + 1
    starts = min(cells, -(-cells // spec.period) + begins)
    return 2 * starts * tree.nbytes(layout.carry) + begins * sum(leaf.whole for leaf in leaves)


def _sampler(spec: TableSpec, slots: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * (slots * 8 // 7) + 1024  # a node for every 8 below it, and what fills up cache lines
    if spec.sampler == "ranked":
        return 4 * 8 * slots  # members and positions, uses, distances
    return 2 * 8 * slots  # uniform: members and positions; fifo: slots and uses


def _saved_sampler(spec: TableSpec, slots: int, used: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * slots
    return {"fifo": 2, "ranked": 3}.get(spec.sampler, 1) * 8 * used
