"""Export a replay as safetensors files, which numpy can read; see docs/replay-format.md."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from starling import tree
from starling.errors import UserError
from starling.experiment.run_folder.disk import write_synced
from starling.experiment.saved_replay.from_checkpoint import SavedReplay
from starling.experiment.saved_replay.manifest import FORMAT, MANIFEST, Column, Manifest, PartFile, Stack, TableEntry
from starling.experiment.saved_replay.step_columns import step_specs, to_columns
from starling.experiment.saved_replay.steps import Steps, read_steps
from starling.replay.table import Table
from starling.types import Layout, StackSpec

PART_BYTES = 2**26
"""Bytes of the steps of one file with whole observations, as a writer or reader holds them in memory."""


def export_replay(replay: SavedReplay, out: Path) -> Manifest:
    """Write all tables into the new folder `out`, atomically and without replacing anything."""
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another folder with --out")
    partial = out.absolute().parent / f".unfinished-{out.name}-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        tables = {table.spec.name: _write_table(partial, table, replay.layout) for table in replay.store.mixture.tables}
        manifest = _manifest(replay, tables)
        write_synced(partial / MANIFEST, manifest.model_dump_json(indent=1).encode())
        partial.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another folder with --out") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _write_table(folder: Path, table: Table, layout: Layout) -> TableEntry:
    parts, env_indices, steps = [], set[int](), 0
    for number, part in enumerate(_parts(table, layout)):
        parts.append(_write_part(folder / f"{table.spec.name}-{number:05d}.safetensors", part, layout.stack))
        env_indices |= set(part.env_index.tolist())
        steps += int(part.valid.sum())
    spec = table.spec
    return TableEntry(
        length=spec.length,
        period=spec.period,
        burn_in=spec.burn_in,
        sampler=spec.sampler,
        priority_exponent=spec.priority_exponent,
        items=table.size,
        steps=steps,
        envs=len(env_indices),
        parts=parts,
    )


def _parts(table: Table, layout: Layout) -> Iterator[Steps]:
    """Yield the steps of a table in parts of equal size, except the last."""
    size = max(1, PART_BYTES // tree.nbytes(step_specs(layout)))
    waiting: list[Steps] = []
    count = 0
    for steps in read_steps(table):
        waiting.append(steps)
        count += len(steps.valid)
        while count >= size:
            joined = tree.concat(waiting, axis=0)
            yield tree.map(lambda leaf: leaf[:size], joined)
            waiting, count = [tree.map(lambda leaf: leaf[size:], joined)], count - size
    if count:
        yield tree.concat(waiting, axis=0)


def _write_part(file: Path, steps: Steps, stack: StackSpec | None) -> PartFile:
    content = save(to_columns(steps, stack))
    write_synced(file, content)
    digest = hashlib.sha256(content).hexdigest()
    return PartFile(file=file.name, steps=len(steps.valid), bytes=len(content), sha256=digest)


def _manifest(replay: SavedReplay, tables: dict[str, TableEntry]) -> Manifest:
    env, config, stack = replay.run_plan.env, replay.run_plan.config, replay.layout.stack
    specs = tree.items(step_specs(replay.layout))
    return Manifest(
        format=FORMAT,
        env=env.id,
        observation_space=str(env.observation),
        action_space=str(env.action),
        reward_clip=config.env.reward_clip,
        stack=None if stack is None else Stack(**asdict(stack)),
        columns={name: Column(shape=spec.shape, dtype=str(np.dtype(spec.dtype))) for name, spec in specs},
        run=str(replay.run),
        algorithm=config.algo.name,
        checkpoint=replay.checkpoint,
        env_steps=replay.env_steps,
        updates=replay.updates,
        tables=tables,
    )
