"""Contestants in processes of their own that take turns: a busy machine is busy for all of them alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from subprocess import Popen

from starling.measuring.helpers import helper, last_words

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


def take_turns(commands: dict[str, list[str]], updates: int, rounds: int) -> dict[str, list[float]]:
    """Updates a second of each contestant, whose process `serve`s, `rounds` times."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as started:
        processes = {}
        for name, command in commands.items():
            print(f"getting ready: {name}", file=sys.stderr)
            processes[name] = started.enter_context(helper(command))
            while _answer(processes[name]) != READY:  # it may have other things to say before
                pass
        for i in range(rounds):
            for name in list(processes)[:: 1 if i % 2 else -1]:
                asked = processes[name].stdin
                assert asked is not None
                print(updates, file=asked, flush=True)
                found[name].append(float(_answer(processes[name])))
    return found


def _answer(process: Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    return line.strip() if line else sys.exit(last_words(process))
