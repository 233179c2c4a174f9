"""Refuses a run that does not fit into memory or disk, with one line of advice."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from starling.config.curiosity import EpisodicConfig, NoveltyConfig
from starling.config.schema import Config
from starling.errors import UserError
from starling.hardware import Room
from starling.launch.plan import RunPlan
from starling.launch.sizes import MAIN, SERVER, Sizes


def refuse(run_plan: RunPlan, sizes: Sizes, room: Room) -> None:
    """Raise `UserError` if the run does not fit: what it needs, what is free, and which key to lower to which value."""
    if sizes.memory > room.memory:
        part, size, advice = _heaviest(run_plan, sizes, sizes.memory - room.memory)
        raise UserError(
            f"this run needs {in_words(sizes.memory)} of memory, {in_words(size)} of it for {part}, and"
            f" {in_words(room.memory)} is free: {advice}"
        )
    if sizes.disk > room.disk:
        raise UserError(
            f"this run needs {in_words(sizes.disk)} of disk for {sizes.checkpoints} checkpoints, and"
            f" {in_words(room.disk)} is free: {_less_disk(run_plan.config, sizes, room)}"
        )


def _heaviest(run_plan: RunPlan, sizes: Sizes, excess: int) -> tuple[str, int, str]:
    """Return the largest part of the memory, its size, and advice on how to save `excess` bytes."""
    config = run_plan.config
    capacity, batch, num_envs = _key(config, "capacity"), _key(config, "batch"), ("env.num", config.env.num)
    fixed = MAIN + (SERVER if sizes.shared else 0)
    full = capacity == num_envs or capacity[1] <= (
        run_plan.expected_env_steps or math.inf
    )  # else saved bytes do not depend on it
    parts = [
        ("the tables", sizes.tables + (sizes.saving if full else 0), capacity),
        ("batches", sizes.batches, batch),
        ("fragments under way", sizes.shared, num_envs),
        ("the memories of curiosity", sizes.memories, _episodic_capacity(config)),
        ("worker processes", sizes.programs - fixed, ("actors", run_plan.actors)),
        ("the network and its optimizer", sizes.learning, None),
        ("the program itself", fixed, None),
    ]
    part, size, key = max(parts, key=lambda entry: entry[1])
    shrinks = sum(other for _, other, same in parts if same == key)  # one key may determine several parts
    advice = "use a smaller network (net) or a larger machine" if key is None else _lower(*key, excess / shrinks)
    return part, size, advice + ("" if excess > sizes.saving else ", or set checkpoint.replay=false")


def _key(config: Config, name: str) -> tuple[str, int]:
    """Return an integer setting of the algorithm with its value; if it has none of that name, `env.num`."""
    value = getattr(config.algo, name, None)
    return (f"algo.{name}", value) if isinstance(value, int) else ("env.num", config.env.num)


def _episodic_capacity(config: Config) -> tuple[str, int]:
    """Return the key and value of the largest episodic memory: NGU's, or that of a part of `curiosity`."""
    parts = {f"curiosity.{i}.capacity": part.capacity for i, part in enumerate(config.curiosity) if _remembers(part)}
    for i, part in enumerate(config.curiosity):
        if isinstance(part, NoveltyConfig):
            parts[f"curiosity.{i}.within.capacity"] = part.within.capacity
    if _remembers(own := getattr(config.algo, "episodic", None)):
        parts["algo.episodic.capacity"] = own.capacity
    return max(parts.items(), key=lambda entry: entry[1], default=("env.num", config.env.num))


def _remembers(part: Any) -> TypeGuard[EpisodicConfig]:
    return isinstance(part, EpisodicConfig)


def _lower(key: str, value: int, by: float) -> str:
    """Advise a value of a key that reduces its memory by the share `by`, rounded down to two digits."""
    enough = int(value * (1 - by))
    enough -= enough % 10 ** max(0, len(str(enough)) - 2)
    return f"lower {key} from {value} to {enough}" if enough >= 1 else f"even {key}=1 would be too much"


def _less_disk(config: Config, sizes: Sizes, room: Room) -> str:
    settings = config.checkpoint
    excess = sizes.checkpoints - (room.disk - sizes.metrics) // max(1, sizes.checkpoint)
    kept = min(settings.keep, sizes.checkpoints) - excess
    if kept >= 1:
        return f"lower checkpoint.keep from {settings.keep} to {kept}, or choose another disk with --runs"
    return "choose another disk with --runs" + (", or set checkpoint.replay=false" if settings.replay else "")


UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def in_words(size: int) -> str:
    """Format a number of bytes with a unit, e.g. 1.5 GB."""
    unit, name = next((entry for entry in UNITS if size >= entry[0]), UNITS[-1])
    return f"{size / unit:,.{1 if size < 100 * unit else 0}f} {name}"
