"""Load the replay of a run from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starling.errors import UserError
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.experiment.saved_replay.resharding import reshard
from starling.hardware import on_device_here
from starling.launch.builders import build_stores
from starling.launch.plan import RunPlan, build_model, check_network, layout_of
from starling.launch.sizes import checkpoint_limits
from starling.replay.store import Store
from starling.types import Layout


@dataclass(frozen=True)
class SavedReplay:
    """The tables of a run at a checkpoint."""

    run: Path
    checkpoint: str
    run_plan: RunPlan
    layout: Layout
    store: Store
    env_steps: int
    updates: int  # of the learner


def load_replay(run: Path, *, which: str, warn: Callable[[str], None], allow: Sequence[str] = ()) -> SavedReplay:
    """Load the replay of the checkpoint called `which`; raises `UserError` if there is none.

    A run folder that another user made may import only the packages in `allow`.
    """
    place = folder.find(run, allow)
    run_plan = RunPlan.from_config(on_device_here(place.config(), warn))
    refuse_queues(run_plan, f"{run} has no replay")
    check_network(run_plan)
    model = build_model(run_plan)
    parts, limits = ("store", "learner"), checkpoint_limits(run_plan, model)
    chosen, state, problems = checkpoint.find(place.checkpoints, which, parts, state_check(*parts), limits)
    for problem in problems:
        warn(f"checkpoint skipped: {problem}")
    if "parts" in state["store"]:
        raise UserError(f"{run} keeps its replay in shards of a cluster (ray.shards), which this command cannot read")
    if not all("tables" in shard for shard in state["store"].get("shards", {"0": state["store"]}).values()):
        raise UserError(f"{run} ({chosen.name}) was saved without its replay: train with checkpoint.replay=true")
    layout = layout_of(run_plan, model)
    whole = replace(run_plan, config=run_plan.config.model_copy(update={"learners": 1}))
    (store,) = build_stores(whole, layout)
    with checkpoint.fitting(f"{run} ({chosen.name})"):
        store.set_state(reshard(run_plan, whole, state["store"]))
        store.check_valid()
    steps, updates = int(state["store"]["env_steps"]), int(state["learner"]["updates"])
    return SavedReplay(run, chosen.name, run_plan, layout, store, steps, updates)


def refuse_queues(run_plan: RunPlan, what: str) -> None:
    """Raise `UserError` for an algorithm that does not store single steps: it has a queue or whole fragments."""
    name = run_plan.config.algo.name
    queues = [table.name for table in run_plan.tables if table.sampler == "fifo"]
    if len(queues) < len(run_plan.tables) and any(table.storage != "ring" for table in run_plan.tables):
        whole = [table.name for table in run_plan.tables if table.name not in queues]
        raise UserError(f"{what} that could be read: {name} keeps sequences ({', '.join(whole)}), not single steps")
    if queues:
        raise UserError(f"{what}: {name} learns from a queue ({', '.join(queues)}), which keeps nothing for later")
