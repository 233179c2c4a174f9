"""Contestants in processes of their own that take turns: a busy machine is busy for all of them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import fmean
from subprocess import Popen

from starling.tools.benchmark.helpers import helper, last_words

READY = "ready"


def serve(update: Callable[[int], object], warm: int) -> None:
    """A contestant: answer every line of updates with the updates a second that they took, after `warm` of them."""
    update(warm)
    print(READY, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        update(int(line))
        print(int(line) / (time.perf_counter() - start), flush=True)


def repeated(step: Callable[[], object]) -> Callable[[int], object]:
    """So many steps."""
    return lambda times: [step() for _ in range(times)]


def take_turns(commands: dict[str, list[str]], updates: int, rounds: int, processes: int = 1) -> dict[str, list[float]]:
    """Updates a second of each contestant, `rounds` times: the mean of its processes, which `serve`.

    One process is faster than another for as long as they live, by 3 % and more: where its memory lies is luck.
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
    while _answer(process) != READY:  # it may have other things to say before
        pass
    return process


def _answer(process: Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    return line.strip() if line else sys.exit(last_words(process))
