"""Measure a full replay of one game: its resident memory, and its times compared with a small replay.

`python -m starling.tools.benchmark.replay_memory GAME OBSERVATIONS STEPS` measures in a fresh process and prints JSON.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from subprocess import run

import numpy as np

from starling.errors import UserError
from starling.hardware import resident_memory
from starling.replay.spec import Codec, TableSpec
from starling.replay.table import Table
from starling.tools.benchmark.random_play import FRAGMENT, LAYOUT, record
from starling.types import Fragment, NDArray

NUM_ENVS = 8
BATCH, N_STEP = 256, 3
SMALL = 10_000
OVERWRITTEN = 0.1
"""Share of a full replay that is inserted again, so that the measured replay is partly overwritten."""
REPETITIONS = 31


@dataclass(frozen=True)
class Seconds:
    """Median time to insert a step, to sample a batch, and to update its priorities."""

    insert: float
    sample: float
    update: float


@dataclass(frozen=True)
class Full:
    """Measurements of a full replay of one game."""

    resident: int  # bytes
    large: Seconds
    small: Seconds  # of a replay of 10,000 items


def table_of(observations: int, codec: Codec) -> Table:
    """Build a prioritized replay of n-step transitions."""
    spec = TableSpec(
        "replay",
        "ring",
        length=N_STEP,
        batch=BATCH,
        capacity=observations,
        sampler="prioritized",
        fragment=FRAGMENT,
        codec=codec,
        reads_past_end=False,
    )
    return Table(spec, LAYOUT, NUM_ENVS, seed=0)


def measure_game(game: str, observations: int, steps: int) -> Full:
    """Measure, in a separate process, a replay that is filled repeatedly with `steps` real steps of `game`."""
    command = [sys.executable, "-m", "starling.tools.benchmark.replay_memory", game, str(observations), str(steps)]
    done = run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason was given"]
        raise UserError(f"cannot measure the replay of {game}: {said[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Full(found["resident"], Seconds(**found["large"]), Seconds(**found["small"]))


def _measure(game: str, observations: int, steps: int) -> Full:
    fragments = record(game, steps, NUM_ENVS).fragments()
    small = table_of(SMALL, "zstd")  # kept, so that its memory is not reused; also compiles and loads everything
    _fill(small, fragments, SMALL)
    small_seconds = _time(small, fragments)
    _give_back()
    small.insert(next(fragments))  # temporary memory of an insertion does not count
    before = resident_memory()
    large = table_of(observations, "zstd")
    _fill(large, fragments, observations)
    return Full(resident_memory() - before, _time(large, fragments), small_seconds)


def _fill(table: Table, fragments: Iterator[Fragment], observations: int) -> None:
    for _ in range(int(observations * (1 + OVERWRITTEN)) // (FRAGMENT * NUM_ENVS) + 1):
        table.insert(next(fragments))


def _time(table: Table, fragments: Iterator[Fragment]) -> Seconds:
    rng = np.random.default_rng(0)
    turns = [_turn(table, next(fragments), rng.random(BATCH)) for _ in range(REPETITIONS)]
    return Seconds(*(median(times) for times in zip(*turns, strict=True)))


def _turn(table: Table, fragment: Fragment, priorities: NDArray) -> tuple[float, float, float]:
    """Return the seconds to insert a step, to sample a batch, and to update its priorities."""
    marks = [time.perf_counter()]
    table.insert(fragment)
    marks.append(time.perf_counter())
    sample = table.sample(BATCH)
    marks.append(time.perf_counter())
    assert sample is not None, "the table is full"
    table.reprioritize(sample.keys, priorities)
    marks.append(time.perf_counter())
    insert, sampling, update = (after - before for before, after in itertools.pairwise(marks))
    return insert / (FRAGMENT * NUM_ENVS), sampling, update


def _give_back() -> None:
    """Return free memory of this process to the system: reused memory would not be measured."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim is not None:
        trim(0)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
