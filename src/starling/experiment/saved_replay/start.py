"""Start a new run with an exported replay, which is inserted into its tables as actors would do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from gymnasium import spaces

from starling import tree
from starling.envs.spaces import leaves
from starling.errors import UserError, printable
from starling.experiment.saved_replay.export import PART_BYTES
from starling.experiment.saved_replay.feed import Feed, feed_all, take_over
from starling.experiment.saved_replay.from_checkpoint import refuse_queues
from starling.experiment.saved_replay.manifest import Manifest, Stack, TableEntry, read_manifest, read_part
from starling.experiment.saved_replay.step_columns import check_columns, from_columns, step_specs
from starling.experiment.saved_replay.steps import Steps
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.launch.runtime import Runtime
from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.replay.table import Table
from starling.types import Layout, NDArray

_HEADER_BYTES = 2**20  # upper bound for one file


def begin_with_replay(run_plan: RunPlan, runtime: Runtime) -> str | None:
    """Fill the tables of a new run from `replay_from`, if it is set; returns a message about their content.

    The inserted steps count neither as env steps nor in the limiter: if they suffice to start learning, there may be
    one update at once, and then `updates_per_step` for every new env step.
    """
    if run_plan.config.replay_from is None:
        return None
    source, layout = Path(run_plan.config.replay_from), layout_of(run_plan, build_model(run_plan))
    manifest = check_replay(run_plan, layout, source)
    stores = [store for store in runtime.stores if isinstance(store, Store)]
    if len(stores) < len(runtime.stores):
        raise UserError("replay_from fills the tables beside the learner; leave out ray.shards")
    by_table = list(zip(*(store.mixture.tables for store in stores), strict=True))
    for shards in by_table:
        try:
            _fill(shards, manifest.tables[shards[0].spec.name], layout, run_plan, source)
        except (KeyError, IndexError, ValueError, TypeError, OverflowError, AssertionError) as error:
            reason = printable(" ".join(f"{type(error).__name__} {error}".split()))
            raise UserError(f"{source} has steps that no run records ({reason}); export again") from error
    sizes = ", ".join(f"{sum(table.size for table in shards):,} items" for shards in by_table)
    return f"replay: {sizes} from {source}, recorded in {printable(manifest.env)} by {printable(manifest.algorithm)}"


def check_replay(run_plan: RunPlan, layout: Layout, source: Path) -> Manifest:
    """Read an export's manifest; raises `UserError` if it does not fit this run. Additional columns are ignored."""
    refuse_queues(run_plan, "replay_from cannot be used")
    manifest = read_manifest(source)
    clip = run_plan.config.env.reward_clip
    stack = None if layout.stack is None else Stack(**asdict(layout.stack))
    sides: list[tuple[str, object, object]] = [
        ("the action space", manifest.action_space, str(run_plan.env.action)),
        ("env.reward_clip", manifest.reward_clip, clip),
        ("the frame stack", manifest.stack, stack),
        ("reward streams", _streams(manifest), sorted(layout.rewards)),
    ]
    for what, theirs, ours in sides:
        if theirs != ours:
            shown = printable(theirs)
            raise UserError(f"{source} does not fit this run: {what} is {shown} there and {ours} here")
    _check_parts(manifest, tree.nbytes(step_specs(layout)), source)
    for name, spec in tree.items(step_specs(layout)):
        column = manifest.columns.get(name)
        if column is None or column.spec != spec:
            there = "missing" if column is None else f"{column.dtype} {list(column.shape)}"
            here = f"{spec.dtype} {list(spec.shape)}"
            raise UserError(f"{source} does not fit this run: {name} is {there} there and {here} here")
    for spec in run_plan.tables:
        _check_table(spec, manifest, source, recurrent=bool(tree.leaves(layout.carry)))
    return manifest


def _check_parts(manifest: Manifest, step_bytes: int, source: Path) -> None:
    """Raise `UserError` for files larger than an export writes: `PART_BYTES`, or one step of `step_bytes` if larger."""
    for table in manifest.tables.values():
        for part in table.parts:
            most = max(PART_BYTES, step_bytes)
            if part.steps * step_bytes > most or part.bytes > 2 * most + _HEADER_BYTES:
                raise UserError(f"{source / part.file} is larger than the files of an export are; export again")


def _streams(manifest: Manifest) -> list[str]:
    return sorted(name.removeprefix("rewards/") for name in manifest.columns if name.startswith("rewards/"))


def _check_table(spec: TableSpec, manifest: Manifest, source: Path, recurrent: bool) -> None:
    entry = manifest.tables.get(spec.name)
    if entry is None:
        known = printable(", ".join(manifest.tables))
        raise UserError(f"{source} has no table {spec.name!r} (there are: {known})")
    if recurrent and not _same_windows(spec, entry):
        raise UserError(
            f"{source} keeps recurrent states only where its own sequences begin (length {entry.length}, period"
            f" {entry.period}, burn-in {entry.burn_in}), not those of this run (length {spec.length}, period"
            f" {spec.period}, burn-in {spec.burn_in}): give them the same lengths"
        )


def _same_windows(spec: TableSpec, entry: TableEntry) -> bool:
    return (spec.length, spec.period, spec.burn_in) == (entry.length, entry.period, entry.burn_in)


def _fill(shards: Sequence[Table], entry: TableEntry, layout: Layout, run_plan: RunPlan, source: Path) -> None:
    """Insert all steps; if the sequences have the same lengths, items and priorities become those of the export."""
    num_envs = run_plan.config.env.num
    feeds = feed_all(shards, layout, num_envs)
    every = [feed for mine in feeds for feed in mine.values()]
    for target, steps in _dealt(_read(entry, layout, run_plan, source), every, by_env=entry.envs == num_envs):
        target.add(steps)
    for feed in every:
        feed.finish()
    for table, mine in zip(shards, feeds, strict=True):
        if _same_windows(table.spec, entry):
            take_over(table, mine, entry.sampler == "prioritized")


def _read(entry: TableEntry, layout: Layout, run_plan: RunPlan, source: Path) -> Iterator[Steps]:
    specs = step_specs(layout)
    for part in entry.parts:
        columns = read_part(source, part)
        try:
            check_columns(columns, specs, layout.stack, part.steps)
            _check_choices(columns, run_plan)
            steps = from_columns(columns, specs, layout.stack)
        except (KeyError, IndexError, ValueError) as error:
            reason = printable(" ".join(str(error).split()))
            raise UserError(
                f"{source / part.file} does not hold what the manifest says ({reason}); export again"
            ) from None
        if (steps.valid[:-1] & (steps.first[1:] | (np.diff(steps.env_index) != 0))).any():
            raise UserError(f"{source / part.file} has a stretch whose last observation is marked as valid")
        yield steps


def _check_choices(columns: Mapping[str, NDArray], run_plan: RunPlan) -> None:
    """Raise ValueError for values outside the env's discrete spaces, since networks use them as indices."""
    observed = [(f"obs/{path}" if path else "obs", leaf) for path, leaf in leaves(run_plan.env.observation)]
    for name, space in [("action", run_plan.env.action), *observed]:
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            most = space.n if isinstance(space, spaces.Discrete) else space.nvec
            if (columns[name] < 0).any() or (columns[name] >= most).any():
                raise ValueError(f"{name} has values outside {space}")


def _dealt(source: Iterator[Steps], feeds: list[Feed], by_env: bool) -> Iterator[tuple[Feed, Steps]]:
    """Yield steps with their `Feed`: one per env of the export if `by_env`, else the emptiest for each stretch."""
    feed_of_env: dict[int, Feed] = {}
    target: Feed | None = None
    for steps in source:
        cuts = np.diff(steps.env_index) != 0 if by_env else ~steps.valid[:-1]
        bounds = [0, *(np.nonzero(cuts)[0] + 1).tolist(), len(steps.valid)]
        for begin, end in pairwise(bounds):
            piece: Steps = tree.map(lambda leaf, a=begin, b=end: leaf[a:b], steps)
            if by_env:
                target = feed_of_env.setdefault(int(piece.env_index[0]), feeds[len(feed_of_env) % len(feeds)])
            elif target is None:
                target = min(feeds, key=lambda feed: feed.written)
            yield target, piece
            if not piece.valid[-1]:
                target = None
