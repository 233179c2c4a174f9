"""Start a run: a new one, one resumed from its own checkpoint, or a branch of another; a `Session` then drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from starling.config.load import secrets_warning
from starling.config.schema import Config
from starling.errors import UserError
from starling.experiment.branch import check_branch
from starling.experiment.display import Display, Logged
from starling.experiment.initial_weights import (
    InitialWeights,
    Transfer,
    match_weights,
    read_weights,
    take,
    write_record,
)
from starling.experiment.prometheus import check_port
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.checkpoint_schema import state_check
from starling.experiment.run_folder.lock import locked
from starling.experiment.saved_replay.resharding import reshard, without_tables
from starling.experiment.saved_replay.start import begin_with_replay
from starling.experiment.session import Result, Session
from starling.hardware import find_room, set_up_torch
from starling.launch.plan import RunPlan, build_model, check_finite, load_weights, plan_threads, validated_plan
from starling.launch.runtime import Runtime, build_runtime
from starling.launch.sizes import checkpoint_limits, initial_limits
from starling.process_exit import Interrupts
from starling.replay.store import Store, shard_envs
from starling.runtime.prewarm import prewarm


def train(
    config: Config, runs: Path, display: Display, *, file: Path | None = None, notes: Sequence[str] = ()
) -> Result:
    """Start a new run in a folder under `runs`.

    Args:
        file: The file from which `config` was loaded; the folder of the run may hold it, but nothing else, before.
        notes: Lines about the configuration to display.
    """
    run_plan = _prepare(config)
    initial = None
    if config.init_from is not None:
        initial = read_weights(config.init_from, initial_limits(run_plan, build_model(run_plan)))
    set_up_torch(plan_threads(run_plan))
    runtime = build_runtime(run_plan, find_room(runs))
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())  # from here on there is something to save
        with _closing_if_it_fails(runtime):
            taken = None if initial is None else _take_weights(runtime, initial)
            filled = begin_with_replay(run_plan, runtime)
            prepared = folder.find_prepared(runs, run_plan.config, file, display.message)
            if prepared is not None:
                held.enter_context(locked(prepared, display.message))
                place = folder.take_over(prepared, run_plan.config, file, display.message)
            else:
                place = folder.create(runs, run_plan.config, display.message)
                held.enter_context(locked(place.path, display.message))
            display = Logged(display, place, run_plan.config)
            display.message(f"run: {place.path}")
            for note in notes:
                display.message(note)
            if initial is not None and taken is not None:
                write_record(place, initial, taken)
                for problem in initial.problems:
                    display.message(f"checkpoint skipped: {problem}")
                for line in taken.lines(initial.source, runtime.learner.model.state_dict()):
                    display.message(line)
            if warning := secrets_warning(run_plan.config):
                display.message(warning)
            if config.precision == "auto":
                display.message(f"precision: {run_plan.config.precision}, chosen by precision=auto")
            if filled is not None:
                display.message(filled)
            session = Session(run_plan, place, runtime, display, interrupts=interrupts)
        return session.run()


def resume(run: Path, display: Display, *, which: str = checkpoint.NEWEST, allow: Sequence[str] = ()) -> Result:
    """Continue a run in its own folder, from its newest valid checkpoint or the one called `which`.

    A run folder that another user made may import only the packages in `allow`.
    """
    place = folder.find(run, allow)
    if place.config().runtime == "ray":
        place.check_cluster()  # before anything is written, including the lock
    with locked(place.path, display.message):
        return _resume(place, Logged(display, place, place.config()), which)


def _resume(place: folder.RunFolder, display: Display, which: str) -> Result:
    run_plan = _prepare(place.config())
    checkpoint.recover(place.checkpoints)
    limits = checkpoint_limits(run_plan, build_model(run_plan))
    later = checkpoint.later_than(place.checkpoints, which, limits)
    if later:
        raise UserError(
            f"there are checkpoints after {which!r} ({', '.join(later)}), which continuing from it would contradict:"
            " add run=NAME to continue in a new folder, or remove them"
        )
    if problem := checkpoint.best_problem(place.checkpoints):
        display.message(f"warning: {problem}: the best checkpoint is determined again")
    source, state = _load(place, which, run_plan, limits, display.message)
    set_up_torch(plan_threads(run_plan))
    runtime = build_runtime(run_plan, find_room(place.path))
    with _closing_if_it_fails(runtime):
        _restore(runtime, run_plan, state, source)
        session = Session(run_plan, place, runtime, display, state["session"])
    return session.run()


def branch(
    run: Path,
    config: Config,
    runs: Path,
    display: Display,
    *,
    which: str = checkpoint.NEWEST,
    allow: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Result:
    """Continue from a run's checkpoint with other settings, in a new folder; the parent run is not changed.

    `config` is the parent's configuration with the user's `overrides` applied.
    """
    parent = folder.find(run, allow)
    old, new = RunPlan.from_config(parent.config()), _prepare(config)
    plan = check_branch(old, new)
    limits = checkpoint_limits(old, build_model(old))
    source, state = _load(parent, which, new, limits, display.message)
    kept = without_tables(state["store"]) if plan.refill else state["store"]
    with checkpoint.fitting(source):
        state["store"] = reshard(old, new, kept)
    set_up_torch(plan_threads(new))
    runtime = build_runtime(new, find_room(runs))
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())  # from here on there is something to save
        with _closing_if_it_fails(runtime):
            fresh, saved = runtime.learner.get_state()["optimizers"], state["learner"]
            with checkpoint.fitting(source):
                saved["optimizers"] = plan.optimizer_states(saved["optimizers"], fresh, saved["updates"])
            _restore(runtime, new, state, source)
            runtime.learner.apply_settings()
            parent.check_rows()
            vouched = parent.vouches_for_cluster(overrides)
            place = folder.create(runs, new.config, display.message, seal_cluster=vouched)
            held.enter_context(locked(place.path, display.message))
            place.copy_history(parent, plan.changes, state["session"]["rows"])
            display = Logged(display, place, new.config)
            for line in plan.lines():
                display.message(line)
            display.message(f"run: {place.path}, a branch of {run}")
            if warning := secrets_warning(new.config):
                display.message(warning)
            session = Session(new, place, runtime, display, state["session"], interrupts=interrupts)
        return session.run()


def _take_weights(runtime: Runtime, initial: InitialWeights) -> Transfer:
    transfer = match_weights(initial, runtime.learner.model.state_dict())
    try:
        runtime.learner.load_initial_weights(take(initial, transfer))
    except ValueError as error:
        raise UserError(f"init_from: the weights of {initial.source} cannot be used: {error}") from None
    return transfer


@contextmanager
def _closing_if_it_fails(runtime: Runtime) -> Iterator[None]:
    """Close the runtime if an exception prevents the run from starting."""
    try:
        yield
    except BaseException:
        runtime.close()
        raise


def _prepare(config: Config) -> RunPlan:
    """Validate the configuration; meanwhile the fork server, if the run uses processes, loads torch."""
    if config.log.prometheus is not None:
        check_port(config.log.prometheus)  # before a folder is created and workers start
    if config.runtime == "processes":
        prewarm()
    return validated_plan(config)


def _load(
    place: folder.RunFolder,
    which: str,
    run_plan: RunPlan,
    limits: checkpoint.ByteLimits,
    say: Callable[[str], None],
) -> tuple[str, dict[str, Any]]:
    """Load the checkpoint called `which`; returns its name for messages and its state."""
    model, check_form = build_model(run_plan), state_check("learner", "store", "session", "incarnations")

    def check(state: dict[str, Any]) -> None:
        check_form(state)
        check_finite(model, state["learner"]["model"])

    chosen, state, problems = checkpoint.find(place.checkpoints, which, check=check, limits=limits)
    for problem in problems:
        say(f"checkpoint skipped: {problem}")
    source = f"{place.path} ({chosen.name})"
    with checkpoint.fitting(source):
        load_weights(model, state["learner"]["model"], source)
    say(f"resuming from {chosen}")
    return source, state


def _restore(runtime: Runtime, run_plan: RunPlan, state: dict[str, Any], source: str) -> None:
    """Restore the runtime from the state of a checkpoint; raises `UserError` if the state does not fit this run."""
    with checkpoint.fitting(source):
        runtime.restore(state)
        dealt = shard_envs(run_plan.config.env.num, run_plan.learners)
        for store, env_index in zip(runtime.stores, dealt, strict=False):
            if not isinstance(store, Store):
                continue
            store.check_valid()
            rings = [table.ring for table in store.mixture.tables if table.ring is not None]
            if not all(np.isin(ring.env_index, env_index).all() for ring in rings):
                raise ValueError("steps of an env that this run does not have")
