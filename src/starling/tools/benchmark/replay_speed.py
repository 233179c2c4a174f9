"""Items a second of our replay and of other libraries', each in a process of its own, as those who use it have it.

`python -m starling.tools.benchmark.replay_speed NAME FILE ITEMS [keep]` fills the replay of NAME with the steps in
FILE, in a process that may be told to keep the memory that it frees, and says how many bytes an item takes; then it
answers every line of seconds with the items a second that it measured for so long.
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
from starling.hardware import keep_memory, set_up_torch
from starling.launch.room import resident_memory
from starling.tools.benchmark.helpers import helper, last_words
from starling.tools.benchmark.random_play import Recording
from starling.tools.benchmark.replay_memory import BATCH, N_STEP, table_of
from starling.tools.benchmark.replay_peers import PEERS, Step, installed, transitions

OURS = "starling"
TURNS = 5
"""Contestants take turns, so that a busy machine is busy for all of them alike."""
KEEP = "keep"


@dataclass(frozen=True)
class Speed:
    """Items a second of one replay (sampled and given new priorities), and what it holds in memory.

    Large arrays that are freed go back to the system unless a process is told to keep them, and are then fetched anew,
    page by page, for the next batch. Our processes are told; others are measured as they come, and told so too.
    """

    items_per_s: float
    kept: float  # the same where memory is kept
    bytes_per_item: float


def compare(recording: Recording, items: int, seconds: float, say: Callable[[str], None]) -> dict[str, Speed]:
    """The speed of every replay that is installed, all together measured for so many seconds."""
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
    """Items a second of each, and bytes an item."""
    with ExitStack() as started:
        contestants, held = {}, {}
        for name in names:
            say(f"filling the replay of {name}" + (", which keeps freed memory" if KEEP in args else ""))
            command = [sys.executable, "-m", "starling.tools.benchmark.replay_speed", name, *args]
            contestants[name] = started.enter_context(helper(command))
            held[name] = _answer(name, contestants[name])
        return _take_turns(contestants, seconds / (TURNS * len(names))), held


def _take_turns(contestants: dict[str, Popen[str]], seconds: float) -> dict[str, float]:
    """Items a second of each: the median of its turns."""
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
        set_up_torch(1)  # as every process of a run is
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
    """Steps a second."""
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds or count == 0:
        step()
        count += 1
    return count / passed


def _take_part(name: str, file: str, items: int) -> None:
    """Answer until there is nobody left to ask."""
    with np.load(file) as arrays:
        build = _build(name, Recording(**arrays))
    build(2 * BATCH)  # loads and compiles what it needs, which is not the replay's memory
    before = resident_memory()
    step = build(items)
    print((resident_memory() - before) / items, flush=True)
    for line in sys.stdin:
        print(BATCH * _rate(step, float(line)), flush=True)


if __name__ == "__main__":
    if KEEP in sys.argv:
        keep_memory()
    _take_part(sys.argv[1], sys.argv[2], int(sys.argv[3]))
