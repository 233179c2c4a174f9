"""How a run begins: anew, from a checkpoint of its own, or as a branch of another; a session then drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from starling import topology
from starling.blueprint import Blueprint, build_model, draw, load_weights, torch_threads, validate
from starling.branching import check_branch
from starling.capacity.room import find_room
from starling.config.load import secrets_warning
from starling.config.schema import Config
from starling.errors import UserError
from starling.hardware import set_up_torch
from starling.replays.resharding import reshard, without_tables
from starling.replays.start import begin_with_replay
from starling.runs import checkpoint, folder
from starling.runs.lock import locked
from starling.runs.signals import Interrupts
from starling.runtime.prewarm import prewarm
from starling.session import Display, Logged, Result, Session


def train(config: Config, runs: Path, display: Display) -> Result:
    """Start a new run in a folder under `runs`."""
    blueprint = _prepare(config)
    set_up_torch(torch_threads(blueprint))
    runtime = topology.build(blueprint, find_room(runs))
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())  # from here on there is something to save
        with _closing_if_it_fails(runtime):
            filled = begin_with_replay(blueprint, runtime)
            place = folder.create(runs, blueprint.config)
            display = Logged(display, place, blueprint.config)
            held.enter_context(locked(place.path, display.message))
            display.message(f"run: {place.path}")
            if warning := secrets_warning(blueprint.config):
                display.message(warning)
            if config.precision == "auto":
                display.message(f"precision: {blueprint.config.precision}, chosen by precision=auto")
            if filled is not None:
                display.message(filled)
            session = Session(blueprint, place, runtime, display, interrupts=interrupts)
        return session.run()


def resume(run: Path, display: Display, *, which: str = checkpoint.NEWEST) -> Result:
    """Go on with a run, in its own folder, from its newest sound checkpoint or the one called `which`."""
    place = folder.find(run)
    with locked(place.path, display.message):
        return _resume(place, Logged(display, place, place.config()), which)


def _resume(place: folder.RunFolder, display: Display, which: str) -> Result:
    blueprint = _prepare(place.config())
    checkpoint.recover(place.checkpoints)
    later = checkpoint.later_than(place.checkpoints, which)
    if later:
        raise UserError(
            f"there are checkpoints after {which!r} ({', '.join(later)}), which going on from it would contradict: add"
            " run=NAME to go on in a folder of its own, or remove them"
        )
    state = _load(place, which, blueprint, display.message)
    set_up_torch(torch_threads(blueprint))
    runtime = topology.build(blueprint, find_room(place.path))
    with _closing_if_it_fails(runtime):
        runtime.restore(state)
        session = Session(blueprint, place, runtime, display, state["session"])
    return session.run()


def branch(run: Path, config: Config, runs: Path, display: Display, *, which: str = checkpoint.NEWEST) -> Result:
    """Go on from a run's checkpoint with other settings, in a new folder; the parent stays as it is."""
    parent = folder.find(run)
    old, new = draw(parent.config()), _prepare(config)
    plan = check_branch(old, new)
    state = _load(parent, which, new, display.message)
    kept = without_tables(state["store"]) if plan.refill else state["store"]
    state["store"] = reshard(old, new, kept)
    set_up_torch(torch_threads(new))
    runtime = topology.build(new, find_room(runs))
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())  # from here on there is something to save
        with _closing_if_it_fails(runtime):
            fresh, saved = runtime.learner.get_state()["optimizers"], state["learner"]
            saved["optimizers"] = plan.optimizer_states(saved["optimizers"], fresh, saved["version"])
            runtime.restore(state)
            runtime.learner.apply_settings()
            place = folder.create(runs, new.config)
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


@contextmanager
def _closing_if_it_fails(runtime: topology.Runtime) -> Iterator[None]:
    """A system that was built is closed, whatever keeps its run from beginning."""
    try:
        yield
    except BaseException:
        runtime.close()
        raise


def _prepare(config: Config) -> Blueprint:
    """Refuse what cannot be trained, while a server for worker processes, if they are wanted, loads torch."""
    if config.runtime == "processes":
        prewarm()
    return validate(config)


def _load(place: folder.RunFolder, which: str, blueprint: Blueprint, say: Callable[[str], None]) -> dict[str, Any]:
    chosen, state, problems = checkpoint.find(place.checkpoints, which)
    for problem in problems:
        say(f"checkpoint skipped: {problem}")
    load_weights(build_model(blueprint), state["learner"]["model"], f"{place.path} ({chosen.name})")
    say(f"resuming from {chosen}")
    return state
