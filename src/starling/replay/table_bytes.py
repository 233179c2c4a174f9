"""Estimates the memory of a table and the size of its checkpoint before the table is built."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starling import tree
from starling.replay.codec import CHUNK, pays
from starling.replay.grid import LEAST_BYTES
from starling.replay.ring import ring_length
from starling.replay.spec import TableSpec
from starling.types import ArraySpec, Layout

EPISODE = 100
"""Assumed length of an episode, which is unknown in advance; shorter episodes need more than estimated."""

PACKED = 1 / 12
"""Assumed compression ratio of uint8 data with zstd; random play of Atari games has 1/100 to 1/32. Other dtypes are
assumed not to compress."""
MEANWHILE = 1 / 4
"""Assumed fraction of the data written to disk without a copy that is overwritten, and so copied, in the meantime."""
OBJECT = 64
"""Memory overhead in bytes of each compressed value; twice as much for values in a dictionary."""


@dataclass(frozen=True)
class TableBytes:
    """Bytes of a table: exact, except for an upper bound on data stored only at the starts of episodes and sequences.

    For compressed data it is an estimate.
    """

    held: int  # in memory, from the start
    saved: int  # in a checkpoint
    copied: int  # additional memory while saving


def table_bytes(spec: TableSpec, layout: Layout, num_envs: int, steps: int) -> TableBytes:
    """Estimate the bytes of a table for `num_envs` envs in a run of `steps` env steps."""
    return _ring(spec, layout, num_envs, steps) if spec.storage == "ring" else _slots(spec, layout)


def most_saved(spec: TableSpec, layout: Layout, num_envs: int) -> int:
    """Upper bound on the bytes of a table in a checkpoint: every step begins an episode, and nothing compresses."""
    books = 128  # per cell: flags, versions, sequences, and the sampler
    if spec.storage == "slots":
        return spec.capacity * (tree.nbytes(layout.trajectory(spec.length, 1)) + books)
    kept_once = tree.nbytes((layout.action, layout.extras)) + 4 * len(layout.rewards) + books
    cell = 4 * tree.nbytes(layout.obs) + 2 * tree.nbytes(layout.carry) + kept_once  # growing arrays may be half empty
    stack = layout.stack.n if layout.stack else 1
    return num_envs * (ring_length(spec, num_envs, stack) + CHUNK) * cell


def _slots(spec: TableSpec, layout: Layout) -> TableBytes:
    item = tree.nbytes(layout.trajectory(spec.length, 1))
    books = 3 * 8  # insertion number, generation, and an entry in the list of free or live slots
    saved = spec.capacity * (item + books) + _saved_sampler(spec, spec.capacity, spec.capacity)
    return TableBytes(spec.capacity * (item + books) + _sampler(spec, spec.capacity), saved, copied=saved)


def _ring(spec: TableSpec, layout: Layout, num_envs: int, steps: int) -> TableBytes:
    length = ring_length(spec, num_envs, layout.stack.n if layout.stack else 1)
    used = min(length, steps * (EPISODE + 1) // (EPISODE * num_envs) + 1)  # a reset between two episodes is a step too
    cells, filled = num_envs * length, num_envs * used
    leaves = [_leaf(spec, layout, path, leaf, cells) for path, leaf in tree.items(layout.obs)]
    cell, books = _cell(layout, leaves), num_envs * (8 + 8 + 1 + 8)  # head, start, awaits_action, env index
    books += num_envs * sum(leaf.opened for leaf in leaves)
    rare, rare_saved = (_now_and_then(spec, layout, leaves, count) for count in (cells, filled))
    saved = filled * cell + books + rare_saved + _saved_sampler(spec, cells, filled)
    in_segments = filled * sum(leaf.in_segments for leaf in leaves)
    return TableBytes(
        held=cells * cell + books + 8 * num_envs + rare + _sampler(spec, cells),
        saved=saved,
        copied=saved - int((1 - MEANWHILE) * in_segments),
    )


@dataclass(frozen=True)
class _Leaf:
    """Bytes of one observation leaf in a ring."""

    cell: int  # per step
    whole: int  # per start of an episode
    opened: int  # per env
    in_segments: int  # per step: written to disk without a copy


def _leaf(spec: TableSpec, layout: Layout, path: str, leaf: ArraySpec, cells: int) -> _Leaf:
    n = layout.stack.n if layout.stack is not None and layout.stack.path == path else 0
    size = leaf.nbytes // (n or 1)  # only the newest frame of a stack
    age = 2 if n else 0
    if not pays(spec.codec, size):
        owner = 4 if n else 0  # index of the whole stack, if there is one
        whole = 2 * leaf.nbytes if n else 0  # in an array that doubles when it is full
        return _Leaf(size + age + owner, whole, 0, size if size * cells >= LEAST_BYTES else 0)
    share = PACKED if leaf.dtype == np.uint8 else 1.0
    whole = int(leaf.nbytes * share) + 2 * OBJECT if n else 0
    return _Leaf(int(size * share) + OBJECT // CHUNK + age, whole, CHUNK * size + 8, int(size * share))


def _cell(layout: Layout, leaves: list[_Leaf]) -> int:
    """Bytes that a ring stores for every step."""
    taken = tree.nbytes((layout.action, layout.extras)) + 4 * len(layout.rewards)
    carry = 4 if tree.leaves(layout.carry) else 0  # index of its value, if there is one
    return sum(leaf.cell for leaf in leaves) + taken + carry + 1 + 8 + 4  # flags, version, steps of the sequence


def _now_and_then(spec: TableSpec, layout: Layout, leaves: list[_Leaf], cells: int) -> int:
    """Bytes of carries at starts of sequences, in an array that doubles, and of whole stacks at starts of episodes."""
    begins = cells // EPISODE + 1
    starts = min(cells, -(-cells // spec.period) + begins)
    return 2 * starts * tree.nbytes(layout.carry) + begins * sum(leaf.whole for leaf in leaves)


def _sampler(spec: TableSpec, slots: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * (slots * 8 // 7) + 1024  # one node per 8 children, and padding to cache lines
    if spec.sampler == "ranked":
        return 4 * 8 * slots  # members and positions, uses, distances
    return 2 * 8 * slots  # uniform: members and positions; fifo: slots and uses


def _saved_sampler(spec: TableSpec, slots: int, used: int) -> int:
    if spec.sampler == "prioritized":
        return 8 * slots
    return {"fifo": 2, "ranked": 3}.get(spec.sampler, 1) * 8 * used
