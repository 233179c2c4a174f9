"""The replay that a run's checkpoint holds, back in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.experiment.saved_replay.resharding import reshard
from starling.launch.builders import build_stores
from starling.launch.plan import Blueprint, build_model, check_network, draw, layout_of
from starling.replay.store import Store
from starling.types import Layout


@dataclass(frozen=True)
class SavedReplay:
    """All tables of a run as they were at a checkpoint."""

    run: Path
    checkpoint: str
    blueprint: Blueprint
    layout: Layout
    store: Store
    env_steps: int
    version: int  # of the learner's weights


def load_replay(run: Path, *, which: str, warn: Callable[[str], None], allow: Sequence[str] = ()) -> SavedReplay:
    """The replay at the checkpoint called `which`; says why where there is none.

    A folder of somebody else's may import only the packages in `allow`.
    """
    place = folder.find(run, allow)
    blueprint = draw(place.config())
    refuse_queues(blueprint, f"{run} has no replay")
    parts = ("store", "learner")
    chosen, state, problems = checkpoint.find(place.checkpoints, which, parts, state_check(*parts))
    for problem in problems:
        warn(f"checkpoint skipped: {problem}")
    if "parts" in state["store"]:
        raise UserError(f"{run} keeps its replay in shards of a cluster (ray.shards), which this command cannot read")
    if not all("tables" in shard for shard in state["store"].get("shards", {"0": state["store"]}).values()):
        raise UserError(f"{run} ({chosen.name}) was saved without its replay: train with checkpoint.replay=true")
    check_network(blueprint)
    layout = layout_of(blueprint, build_model(blueprint))
    whole = replace(blueprint, config=blueprint.config.model_copy(update={"learners": 1}))
    (store,) = build_stores(whole, layout)
    with checkpoint.fitting(f"{run} ({chosen.name})"):
        store.set_state(reshard(blueprint, whole, state["store"]))
        store.check_valid()
    steps, version = int(state["store"]["env_steps"]), int(state["learner"]["version"])
    return SavedReplay(run, chosen.name, blueprint, layout, store, steps, version)


def refuse_queues(blueprint: Blueprint, what: str) -> None:
    """Refuse an algorithm that keeps nothing of what it has learnt from."""
    name = blueprint.config.algo.name
    queues = [table.name for table in blueprint.tables if table.sampler == "fifo"]
    if len(queues) < len(blueprint.tables) and any(table.storage != "ring" for table in blueprint.tables):
        whole = [table.name for table in blueprint.tables if table.name not in queues]
        raise UserError(f"{what} that could be read: {name} keeps whole unrolls ({', '.join(whole)}), not single steps")
    if queues:
        raise UserError(f"{what}: {name} learns from a queue ({', '.join(queues)}), which keeps nothing for later")
