"""What an env step costs: the time of one core for the env, the network and the training, while all cores work.

`python -m starling.measuring.costs CONFIG` (as JSON) works without an end: so the other cores are kept as busy as they
are in a run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen

import torch

from starling.blueprint import Blueprint, cores, draw, set_up_torch
from starling.capacity.room import peak_memory
from starling.config.load import from_dict, to_dict
from starling.config.schema import Config
from starling.errors import UserError
from starling.measuring.workload import Work

REPETITIONS = 7
FEWEST = 3
"""Repetitions even of work so slow that they take longer than was asked for."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one core that an env step takes: the median of several repetitions and their extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Costs:
    """What every env step of a run takes, and on how many cores."""

    env_step: Cost
    inference: Cost
    training: Cost
    cores: int
    peak: int  # bytes of memory that this process had at most

    @property
    def acting(self) -> float:
        return self.env_step.median + self.inference.median

    @property
    def total(self) -> float:
        return self.acting + self.training.median

    @property
    def limit(self) -> float:
        """Env steps a second if all cores did nothing else."""
        return self.cores / self.total


def measure(blueprint: Blueprint, seconds: float) -> Costs:
    """Costs of a run, measured for about so many seconds with the env rows of its first actor."""
    count = cores()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _neighbours(blueprint.config, count - 1) as wait_until_ready, closing(Work(blueprint)) as work:
            wait_until_ready()
            found = _repeat(work, seconds)
    finally:
        torch.set_num_threads(threads)
    env_step, inference, training = (Cost(median(times), min(times), max(times)) for times in found)
    return Costs(env_step, inference, training, count, peak_memory())


def _repeat(work: Work, seconds: float) -> list[list[float]]:
    """The times of every kind of work, in turns, so that a busy machine slows them alike."""
    found: list[list[float]] = [[] for _ in work.kinds]
    began, turn = time.perf_counter(), seconds / (REPETITIONS * len(work.kinds))
    for i in range(REPETITIONS):
        for times, kind in zip(found, work.kinds, strict=True):
            work.restore()
            times.append(_time_of(kind, turn))
        if i + 1 >= FEWEST and time.perf_counter() - began > seconds:
            break
    return found


def _time_of(kind: Callable[[], float], seconds: float) -> float:
    """Seconds of one core an env step; what runs in several threads takes as much as all of them.

    Time in which somebody else had the core does not count, time in which the env waits for something does.
    """
    steps, wall, used, queued = 0.0, time.perf_counter(), time.process_time(), _queued()
    while time.perf_counter() - wall < seconds or steps == 0:
        steps += kind()
    return max(time.perf_counter() - wall - (_queued() - queued), time.process_time() - used) / steps


def _queued() -> float:
    """Seconds that this thread was ready to run and had no core; 0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@contextmanager
def _neighbours(config: Config, count: int) -> Iterator[Callable[[], None]]:
    """So many other processes that do the same work all the while; gives a function that waits until they do."""
    command = [sys.executable, "-m", "starling.measuring.costs", json.dumps(to_dict(config))]
    with ExitStack() as started:
        others = [started.enter_context(_worker(command)) for _ in range(count)]

        def wait_until_ready() -> None:
            for other in others:
                _wait_for(other)

        yield wait_until_ready


@contextmanager
def _worker(command: list[str]) -> Iterator[Popen[str]]:
    with Popen(command, text=True, stdout=PIPE, stderr=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(process: Popen[str]) -> None:
    """Wait until the process says that it is at work."""
    assert process.stdout is not None
    assert process.stderr is not None
    if not process.stdout.readline():
        said = process.stderr.read().strip().splitlines() or ["no reason was given"]
        raise UserError(f"cannot measure with every core busy, a second process ended early: {said[-1]}")


def _keep_busy(config: Config) -> None:
    """Work until the process that wanted it kills this one, or is gone itself."""
    parent = os.getppid()
    blueprint = draw(config)
    set_up_torch(1)
    work = Work(blueprint)
    print("ready", flush=True)
    while os.getppid() == parent:
        _repeat(work, 1.0)


if __name__ == "__main__":
    _keep_busy(from_dict(json.loads(sys.argv[1])))
