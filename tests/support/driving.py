"""Runs over several processes that a test drives step by step, and does things to meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

PATIENCE = 240.0
"""Seconds that anything may take on a machine that has much else to do."""

FAMILY = [
    *[
        "env={id: toy/identity, num: 4}",
        "net.torso.hidden=[8]",
        "net.core.size=4",
        "stop.return=null",
        "algo.policies=4",
    ],
    *["algo.unroll=4", "algo.period=2", "algo.fragment=4", "algo.batch=8", "algo.capacity=20000"],
    *["algo.learning_starts=20", "algo.updates_per_step=0.05", "eval={every: 1000000, episodes: 3}"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.meta={trials: 5}"],
    "algo.episodic={kind: episodic, features: 4, capacity: 8, neighbours: 2, hidden: 8, torso: {hidden: [8]}}",
]
"""A small `ngu-deepsea` whose evaluator tries four policies in the first five episodes of an evaluation."""


@contextmanager
def run_of(preset: str, *settings: str) -> Iterator[Any]:
    """A run that goes on only while `go_on` and the like are at work."""
    runtime: Any = build_runtime(RunPlan.from_config(load(preset, settings)))
    runtime.rounds, runtime.seen = runtime.run(), []
    try:
        yield runtime
    finally:
        runtime.close()


@contextmanager
def impatient(*workers: Any, seconds: float = 2.5) -> Iterator[None]:
    """Take these workers for hung once they are silent for so long; on a busy machine others are silent for longer."""
    before = [worker.timeout for worker in workers]
    for worker in workers:
        worker.timeout = seconds
    try:
        yield
    finally:
        for worker, timeout in zip(workers, before, strict=True):
            worker.timeout = timeout


def go_on_until(runtime: Any, over: Callable[[], bool]) -> list[str]:
    """Run until it is over; the notices on the way, which are `seen` also where something is raised."""
    runtime.seen, end = [], time.monotonic() + PATIENCE
    while not over():
        next(runtime.rounds)
        runtime.seen += runtime.notices()
        assert time.monotonic() < end, (runtime.env_steps, runtime.updates, runtime.seen)
    return runtime.seen + runtime.notices()


def go_on(runtime: Any, steps: int) -> list[str]:
    """Run until so many more env steps have come in; the notices on the way."""
    goal = runtime.env_steps + steps
    return go_on_until(runtime, lambda: runtime.env_steps >= goal)


def until_notice(runtime: Any, text: str) -> list[str]:
    """Run until something is said; all notices on the way."""
    return go_on_until(runtime, lambda: any(text in line for line in runtime.seen))


def evaluate(runtime: Any) -> None:
    """Have an evaluation done: of weights that were trained, over whole episodes of toy/identity."""
    for _ in runtime.evaluate(wait=True):
        pass
    row = runtime.evaluations()[-1]
    assert row["eval/length"] == 16
    assert 0 < row["eval/env_steps"] <= runtime.env_steps


def evaluate_family(runtime: Any) -> None:
    """Have policies tried in two evaluations, of which the second goes on where the first has ended."""
    evaluate(runtime)
    first = runtime.save(with_tables=False)["evaluator"]
    assert set(first["arms"]) == {0, 1, 2, 3}
    evaluate(runtime)
    second = runtime.save(with_tables=False)["evaluator"]
    assert second["arms"][:5] == first["arms"]
    assert (first["played"], second["played"]) == (5, 10)


def balance(runtime: Any) -> dict[str, int]:
    """The books of the env steps, which must add up."""
    row, steps = runtime.hub.call(lambda: (runtime.hub.metrics(), runtime.env_steps))
    books = {key: row[f"ledger/{key}"] for key in ("produced", "inserted", "lost", "open")}
    assert books["produced"] == books["inserted"] + books["lost"] + books["open"]
    assert books["inserted"] == steps
    assert books["open"] >= 0
    return books
