"""Contestants in separate processes that take turns, so that a busy machine slows them equally."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import fmean
from subprocess import Popen

from starling.tools.benchmark.helpers import helper, last_words

READY = "ready"


def serve(update: Callable[[int], object], warm_up: int) -> None:
    """Run a contestant: `warm_up` updates, then for each number read, do these updates and print their rate."""
    update(warm_up)
    print(READY, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        update(int(line))
        print(int(line) / (time.perf_counter() - start), flush=True)


def repeat(step: Callable[[], object]) -> Callable[[int], object]:
    """A function that calls `step` a given number of times."""
    return lambda times: [step() for _ in range(times)]


def take_turns(commands: dict[str, list[str]], updates: int, rounds: int, processes: int = 1) -> dict[str, list[float]]:
    """Updates per second of each contestant, `rounds` times: the mean over its processes, which call `serve`.

    A process can be faster than another one for its whole lifetime, by 3% and more, depending on its memory layout.
    """
    found: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as started:
        ready = [
            (name, _get_ready(started, name, command)) for _ in range(processes) for name, command in commands.items()
        ]
        for i in range(rounds):
            answers: dict[str, list[float]] = {name: [] for name in commands}
            for name, process in ready[:: 1 if i % 2 else -1]:
                assert process.stdin is not None
                print(updates, file=process.stdin, flush=True)
                answers[name].append(float(_answer(process)))
            for name, speeds in answers.items():
                found[name].append(fmean(speeds))
    return found


def _get_ready(started: ExitStack, name: str, command: list[str]) -> Popen[str]:
    print(f"getting ready: {name}", file=sys.stderr)
    process = started.enter_context(helper(command))
    while _answer(process) != READY:  # it may print other lines first
        pass
    return process


def _answer(process: Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    return line.strip() if line else sys.exit(last_words(process))
