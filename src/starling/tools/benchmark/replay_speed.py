"""Measure items per second of our replay and of other libraries, each in its own process.

`python -m starling.tools.benchmark.replay_speed NAME FILE ITEMS [keep]` fills the replay of NAME with the steps in FILE
and prints the bytes per item. For every line with a number of seconds it then measures for this time and prints the
items per second. With `keep`, the process keeps freed memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import Popen
from tempfile import TemporaryDirectory

import numpy as np

from starling.errors import UserError
from starling.hardware import keep_memory, resident_memory, set_up_torch
from starling.tools.benchmark.helpers import helper, last_words
from starling.tools.benchmark.random_play import Recording
from starling.tools.benchmark.replay_memory import BATCH, N_STEP, table_of
from starling.tools.benchmark.replay_peers import PEERS, Step, installed, transitions

OURS = "starling"
TURNS = 5
"""Number of turns of each library; they take turns, so that other load affects them equally."""
KEEP = "keep"


@dataclass(frozen=True)
class Speed:
    """Items per second of one replay (sampled and given new priorities), and its memory.

    By default, large arrays that are freed are returned to the system, and the next batch needs new pages. Processes of
    Starling always keep freed memory; other libraries are measured with the default, and again with memory kept.
    """

    items_per_s: float
    kept: float  # the same if freed memory is kept
    bytes_per_item: float


def compare(recording: Recording, items: int, seconds: float, say: Callable[[str], None]) -> dict[str, Speed]:
    """Measure the speed of every installed replay, for `seconds` in total."""
    names = [OURS, *installed()]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "steps.npz"
        np.savez(file, **{field.name: getattr(recording, field.name) for field in fields(recording)})
        plain, held = _contest(names, [str(file), str(items)], seconds / 2, say)
        kept, _ = _contest(names, [str(file), str(items), KEEP], seconds / 2, say)
    return {name: Speed(plain[name], kept[name], held[name]) for name in names}


def _contest(
    names: list[str], args: list[str], seconds: float, say: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the items per second and the bytes per item of each library."""
    with ExitStack() as started:
        contestants, held = {}, {}
        for name in names:
            say(f"filling the replay of {name}" + (", which keeps freed memory" if KEEP in args else ""))
            command = [sys.executable, "-m", "starling.tools.benchmark.replay_speed", name, *args]
            contestants[name] = started.enter_context(helper(command))
            held[name] = _answer(name, contestants[name])
        return _take_turns(contestants, seconds / (TURNS * len(names))), held


def _take_turns(contestants: dict[str, Popen[str]], seconds: float) -> dict[str, float]:
    """Return the items per second of each library: the median over its turns."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(TURNS):
        for name, process in contestants.items():
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            rates[name].append(_answer(name, process))
    return {name: median(each) for name, each in rates.items()}


def _answer(name: str, process: Popen[str]) -> float:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise UserError(f"cannot measure the replay of {name}: {last_words(process)}")
    return float(line)


def _build(name: str, recording: Recording) -> Callable[[int], Step]:
    if name == OURS:
        set_up_torch(1)  # as in every process of a run
        return partial(_ours, recording)
    return lambda items: PEERS[name](transitions(recording, items), items, BATCH, N_STEP)


def _ours(recording: Recording, items: int) -> Step:
    table, fragments = table_of(items, "none"), recording.fragments()
    while not table.counters["overwritten"]:
        table.insert(next(fragments))
    rng = np.random.default_rng(0)

    def draw() -> object:
        sample = table.sample(BATCH)
        assert sample is not None, "the table is full"
        table.reprioritize(sample.keys, rng.random(BATCH))
        return sample

    return draw


def _rate(step: Step, seconds: float) -> float:
    """Return the calls of `step` per second."""
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds or count == 0:
        step()
        count += 1
    return count / passed


def _take_part(name: str, file: str, items: int) -> None:
    """Fill the replay of `name` and answer lines from stdin until it is closed."""
    with np.load(file) as arrays:
        build = _build(name, Recording(**arrays))
    build(2 * BATCH)  # loads and compiles code first, whose memory does not count
    before = resident_memory()
    step = build(items)
    print((resident_memory() - before) / items, flush=True)
    for line in sys.stdin:
        print(BATCH * _rate(step, float(line)), flush=True)


if __name__ == "__main__":
    if KEEP in sys.argv:
        keep_memory()
    _take_part(sys.argv[1], sys.argv[2], int(sys.argv[3]))
