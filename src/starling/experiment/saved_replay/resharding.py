"""Redistribute saved tables to another number of learners, each of which has one shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from starling.experiment.saved_replay.feed import feed_all, take_over
from starling.experiment.saved_replay.steps import read_steps
from starling.launch.builders import build_stores
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.replay.store import Store, shard_envs
from starling.replay.table import Table
from starling.types import Fragment, Layout

State = dict[str, Any]


def reshard(old: RunPlan, new: RunPlan, saved: State) -> State:
    """Convert the saved store of a run `old` to that of a run `new` with another number of learners."""
    if old.learners == new.learners:
        return saved
    parts = list(saved["shards"].values()) if "shards" in saved else [saved]
    steps = _dealt(int(saved["env_steps"]), new)
    shards: list[State] = [{"env_steps": mine} for mine in steps]
    if all("tables" in part for part in parts):
        for shard, more in zip(shards, _tables(old, new, parts), strict=True):
            shard |= more
    return shards[0] if new.learners == 1 else {"env_steps": saved["env_steps"], "shards": _numbered(shards)}


def without_tables(saved: State) -> State:
    """Return a saved store without its tables, which will be filled again."""
    emptied = {"env_steps": saved["env_steps"]}
    if "shards" in saved:
        emptied["shards"] = {name: without_tables(shard) for name, shard in saved["shards"].items()}
    return emptied


def _numbered(shards: list[State]) -> State:
    return {str(i): shard for i, shard in enumerate(shards)}


def _dealt(total: int, run_plan: RunPlan) -> list[int]:
    """Divide a count of the whole run among the shards in proportion to their envs."""
    num_envs = [len(mine) for mine in shard_envs(run_plan.config.env.num, run_plan.learners)]
    ends = [total * int(end) // sum(num_envs) for end in np.cumsum([0, *num_envs])]
    return np.diff(ends).tolist()


def _tables(old: RunPlan, new: RunPlan, parts: list[State]) -> list[State]:
    layout = layout_of(new, build_model(new))
    stores = build_stores(new, layout)
    for i, spec in enumerate(new.tables):
        shards = [store.mixture.tables[i] for store in stores]
        before = [_restored(old, part, k, i, layout) for k, part in enumerate(parts)]
        if spec.storage == "ring":
            _move_steps(before, shards, layout, new.config.env.num)
        elif spec.sampler == "fifo":
            _move_queue(before, shards)
    return [
        {"limiter": limiter, "tables": store.mixture.get_state()}
        for limiter, store in zip(_limiters(new, parts, stores), stores, strict=True)
    ]


def _restored(run_plan: RunPlan, part: State, shard: int, index: int, layout: Layout) -> Table:
    """Restore a table; a queue is set up so that every item can be sampled exactly once."""
    spec = replace(run_plan.shards()[shard][index], min_size=1, max_times_sampled=1)
    mine = shard_envs(run_plan.config.env.num, run_plan.learners)[shard]
    table = Table(spec, layout, len(mine), run_plan.config.seed, index=index, shard=shard)
    state = part["tables"][spec.name]
    if spec.sampler == "fifo":
        state = {**state, "sampler": {**state["sampler"], "uses": np.zeros_like(state["sampler"]["uses"])}}
    table.set_state(state)
    table.check_valid()
    return table


def _move_steps(before: Sequence[Table], after: Sequence[Table], layout: Layout, num_envs: int) -> None:
    """Insert all steps into the shards that now have their envs; items and priorities are kept."""
    feeds = feed_all(after, layout, num_envs, own=True)
    by_env = {i: feed for mine in feeds for i, feed in mine.items()}
    for table in before:
        for steps in read_steps(table):
            by_env[int(steps.env_index[0])].add(steps)
    for feed in by_env.values():
        feed.finish()
    for table, mine in zip(after, feeds, strict=True):
        take_over(table, mine, table.spec.sampler == "prioritized")


def _move_queue(before: Sequence[Table], after: Sequence[Table]) -> None:
    """Distribute the queued fragments over the shards, regardless of their envs."""
    number = count(1)
    for table in before:
        while (item := table.sample(1)) is not None:
            i = next(number)
            after[i % len(after)].insert(Fragment(item.trajectory, np.zeros(1, np.int64), actor_id=-1, sequence=i))


def _limiters(new: RunPlan, parts: list[State], stores: Sequence[Store]) -> list[State]:
    """Return limiter states: sampling has started if it had on all shards; steps are divided by `_dealt`."""
    limiters = [part["limiter"] for part in parts]
    begun = all(limiter["start"] is not None for limiter in limiters)
    fresh = _dealt(sum(limiter["steps"] - (limiter["start"] or 0) for limiter in limiters), new)
    return [
        {
            "in_flight": 0,
            "steps": mine,
            "start": 0 if begun else None,
            "sampled": min(limiter["sampled"] for limiter in limiters),
            "sizes": list(store.mixture.sizes),
            "unpublished": [],
        }
        for mine, store in zip(fresh, stores, strict=True)
    ]
