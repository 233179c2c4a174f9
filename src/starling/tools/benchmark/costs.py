"""Measure the cost of an env step: core time of the env, inference, and training, while all cores are busy.

The other cores work as in a run: while acting is measured, one learns and the rest act; while learning is measured, all
act. Each is kept busy by `python -m starling.tools.benchmark.costs`, which reads a configuration (as JSON) and then one
command per line, `learn` or `act`, and executes it until the next one.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import Popen

import torch

from starling.config.load import from_dict, to_dict
from starling.config.schema import Config
from starling.errors import UserError
from starling.hardware import cores, peak_memory, set_up_torch
from starling.launch.plan import RunPlan
from starling.tools.benchmark.helpers import helper, last_words
from starling.tools.benchmark.workload import Work

LEARN, ACT = "learn", "act"
REPETITIONS = 7
FEWEST = 3
"""Fewest repetitions, even if they take longer than requested."""


@dataclass(frozen=True)
class Cost:
    """Core seconds per env step: the median, minimum, and maximum of several repetitions."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Costs:
    """Costs of an env step of a run, and the number of cores."""

    env_step: Cost
    inference: Cost
    training: Cost
    cores: int
    peak: int  # peak memory of this process in bytes

    @property
    def acting(self) -> float:
        return self.env_step.median + self.inference.median

    @property
    def total(self) -> float:
        return self.acting + self.training.median

    @property
    def limit(self) -> float:
        """Largest possible number of env steps per second on all cores."""
        return self.cores / self.total


def measure(run_plan: RunPlan, seconds: float) -> Costs:
    """Measure the costs of a run for about `seconds`, with the envs of its first actor."""
    count = cores()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _neighbors(run_plan.config, count - 1) as neighbors, closing(Work(run_plan)) as work:
            found = _repeat(work, seconds, neighbors)
    finally:
        torch.set_num_threads(threads)
    env_step, inference, training = (Cost(median(times), min(times), max(times)) for times in found)
    return Costs(env_step, inference, training, count, peak_memory())


def _repeat(work: Work, seconds: float, neighbors: list[Popen[str]]) -> list[list[float]]:
    """Measure env steps, inference, and training in turns, so that other load affects them equally."""
    found: list[list[float]] = [[], [], []]
    began, turn = time.perf_counter(), seconds / (REPETITIONS * len(found))
    for i in range(REPETITIONS):
        work.restore()
        _tell(neighbors, [LEARN, *[ACT] * len(neighbors)])
        found[0].append(_time_of(work.step_envs, turn))
        found[1].append(_time_of(work.infer, turn))
        _tell(neighbors, [ACT] * len(neighbors))
        found[2].append(_time_of(work.train, turn))
        if i + 1 >= FEWEST and time.perf_counter() - began > seconds:
            break
    return found


def _time_of(kind: Callable[[], float], seconds: float) -> float:
    """Return core seconds per env step, summed over threads.

    Time in which other processes used the core does not count; time in which the env waits does.
    """
    steps, wall, used, queued = 0.0, time.perf_counter(), time.process_time(), _queued()
    while time.perf_counter() - wall < seconds or steps == 0:
        steps += kind()
    return max(time.perf_counter() - wall - (_queued() - queued), time.process_time() - used) / steps


def _queued() -> float:
    """Return the seconds in which this thread was runnable but had no core; 0 if the system does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@contextmanager
def _neighbors(config: Config, count: int) -> Iterator[list[Popen[str]]]:
    """Start `count` other processes, which work on command; see `_tell`."""
    command = [sys.executable, "-m", "starling.tools.benchmark.costs"]
    with ExitStack() as started:
        processes = [started.enter_context(helper(command)) for _ in range(count)]
        for process in processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # `_tell` reports why it ended
                process.stdin.write(f"{json.dumps(to_dict(config))}\n")
                process.stdin.flush()
        yield processes


def _tell(processes: list[Popen[str]], words: list[str]) -> None:
    """Send one command to every process, and wait until all have started it."""
    for process, word in zip(processes, words, strict=False):
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        if not process.stdout.readline():
            why = last_words(process)
            raise UserError(f"cannot measure with every core busy, a second process ended early: {why}")


def _keep_busy(config: Config) -> None:
    """Repeat the last command from stdin until stdin is closed."""
    set_up_torch(1)
    work = Work(RunPlan.from_config(config))
    word = sys.stdin.readline().strip()
    while word:
        print(word, flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            if word == LEARN:
                work.train()
                work.restore()
            else:
                work.step_envs()
                work.infer()
        word = sys.stdin.readline().strip()


if __name__ == "__main__":
    _keep_busy(from_dict(json.loads(sys.stdin.readline())))  # not an argument, which other users could see
