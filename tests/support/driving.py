"""Drive multi-process runs step by step, so that a test can interfere in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

TIMEOUT = 240.0
"""Seconds that anything may take on a busy machine."""

NGU = [
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
def stepped_run(preset: str, *settings: str) -> Iterator[Any]:
    """A run that advances only inside `run_until` and the functions based on it."""
    runtime: Any = build_runtime(RunPlan.from_config(load(preset, settings)))
    runtime.rounds, runtime.seen_notices = runtime.run(), []
    try:
        yield runtime
    finally:
        runtime.close()


@contextmanager
def short_timeouts(*workers: Any, seconds: float = 2.5) -> Iterator[None]:
    """Treat these workers as hung after `seconds` of silence; on a busy machine other workers may take longer."""
    before = [worker.timeout for worker in workers]
    for worker in workers:
        worker.timeout = seconds
    try:
        yield
    finally:
        for worker, timeout in zip(workers, before, strict=True):
            worker.timeout = timeout


def run_until(runtime: Any, done: Callable[[], bool]) -> list[str]:
    """Run until `done()`; returns the notices meanwhile, which are also in `seen_notices` if something raises."""
    runtime.seen_notices, end = [], time.monotonic() + TIMEOUT
    while not done():
        next(runtime.rounds)
        runtime.seen_notices += runtime.notices()
        assert time.monotonic() < end, (runtime.env_steps, runtime.updates, runtime.seen_notices)
    return runtime.seen_notices + runtime.notices()


def run_steps(runtime: Any, steps: int) -> list[str]:
    """Run until `steps` more env steps have been inserted; returns the notices meanwhile."""
    target = runtime.env_steps + steps
    return run_until(runtime, lambda: runtime.env_steps >= target)


def run_until_notice(runtime: Any, text: str) -> list[str]:
    """Run until a notice contains `text`; returns all notices meanwhile."""
    return run_until(runtime, lambda: any(text in line for line in runtime.seen_notices))


def evaluate(runtime: Any) -> None:
    """Run one evaluation, of trained weights over whole episodes of toy/identity."""
    for _ in runtime.evaluate(wait=True):
        pass
    row = runtime.evaluations()[-1]
    assert row["eval/length"] == 16
    assert 0 < row["eval/env_steps"] <= runtime.env_steps


def evaluate_twice(runtime: Any) -> None:
    """Run two evaluations, of which the second continues the policy trials of the first."""
    evaluate(runtime)
    first = runtime.save(with_tables=False)["evaluator"]
    assert set(first["arms"]) == {0, 1, 2, 3}
    evaluate(runtime)
    second = runtime.save(with_tables=False)["evaluator"]
    assert second["arms"][:5] == first["arms"]
    assert (first["played"], second["played"]) == (5, 10)


def checked_ledger(runtime: Any) -> dict[str, int]:
    """The ledger of env steps, after checking that it adds up."""
    row, steps = runtime.hub.call(lambda: (runtime.hub.metrics(), runtime.env_steps))
    ledger = {key: row[f"ledger/{key}"] for key in ("produced", "inserted", "lost", "open")}
    assert ledger["produced"] == ledger["inserted"] + ledger["lost"] + ledger["open"]
    assert ledger["inserted"] == steps
    assert ledger["open"] >= 0
    return ledger
