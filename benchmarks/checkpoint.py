"""Delay of training by a checkpoint of a full replay, and its total duration, for both codecs.

A prioritized replay of 84x84x4 observations (random play of an Atari game, inserted repeatedly) is saved, then saved
again after some more steps, and restored. While a checkpoint is written, steps are inserted and batches sampled;
`slowest_turn_s` is the longest duration of such a turn, `slowest_turn_before_s` the longest before saving.

    python benchmarks/checkpoint.py [--observations 1000000] [--more 50000] [--codecs zstd none] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from machine import describe

from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.checkpoint import Retention
from starling.experiment.run_folder.saving import Saver
from starling.replay.spec import Codec
from starling.replay.table import Table
from starling.tools.benchmark.random_play import FRAGMENT, record
from starling.tools.benchmark.replay_memory import BATCH, NUM_ENVS, table_of
from starling.types import Fragment

TURN_SECONDS = 0.05
"""Interval at which a fragment of 128 steps is inserted and a batch sampled: 2,560 env steps per second."""
TURNS_BEFORE = 100


def insert(table: Table, fragments: Iterator[Fragment], steps: int) -> None:
    for _ in range(steps // (FRAGMENT * NUM_ENVS) + 1):
        table.insert(next(fragments))


def turn(table: Table, fragments: Iterator[Fragment]) -> float:
    """Insert a fragment, sample a batch, and update its priorities; returns the seconds."""
    started = time.perf_counter()
    table.insert(next(fragments))
    sample = table.sample(BATCH)
    assert sample is not None, "the table is full"
    table.reprioritize(sample.keys, np.linspace(0.1, 1, BATCH))
    return time.perf_counter() - started


def save(saver: Saver, root: Path, table: Table, fragments: Iterator[Fragment]) -> dict[str, float]:
    """Save while the table continues to be used."""
    before, steps = _bytes(root), table.steps
    saver.save(lambda: (steps, {"store": table.get_state()}), None)
    turns = [0.0]
    while not (root / f"step-{steps:012d}").exists():
        turns.append(turn(table, fragments))
        time.sleep(max(0.0, TURN_SECONDS - turns[-1]))
        saver.check()
    saver.finish()
    times = saver.metrics()
    return {
        "stall_s": times["time/checkpoint_stall"],
        "total_s": times["time/checkpoint"],
        "slowest_turn_s": round(max(turns), 4),
        "gigabytes_written": round((_bytes(root) - before) / 1e9, 3),
    }


def _bytes(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


def digest(table: Table) -> str:
    """A hash of the next batches: observations, keys, and probabilities."""
    found = hashlib.sha256()
    for _ in range(4):
        sample = table.sample(BATCH)
        assert sample is not None
        for array in (sample.trajectory.obs, sample.keys.slot, sample.probability):
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def measure(codec: Codec, fragments: Iterator[Fragment], observations: int, more: int, root: Path) -> dict[str, object]:
    saved, expected = measure_saving(codec, fragments, observations, more, root)
    started = time.perf_counter()
    restored = table_of(observations, codec)
    restored.set_state(checkpoint.find(root)[1]["store"])
    seconds = round(time.perf_counter() - started, 3)
    return {**saved, "restore_s": seconds, "restored_exactly": digest(restored) == expected}


def measure_saving(
    codec: Codec, fragments: Iterator[Fragment], observations: int, more: int, root: Path
) -> tuple[dict[str, object], str]:
    """The durations of saving, and the digest that a restored table must have."""
    table, saver = table_of(observations, codec), Saver(root, Retention(newest=2), sys.exit)
    insert(table, fragments, observations + observations // 50)
    before = [turn(table, fragments) for _ in range(TURNS_BEFORE)]
    first = save(saver, root, table, fragments)
    insert(table, fragments, more)
    second = save(saver, root, table, fragments)
    saver.save(lambda: (table.steps, {"store": table.get_state()}), None)
    saver.finish()
    saver.close()
    return {
        "items": table.size,
        "slowest_turn_before_s": round(max(before), 4),
        "first": first,
        "after_more": second,
    }, digest(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=1_000_000, help="size of the replay")
    parser.add_argument("--more", type=int, default=50_000, help="steps between two checkpoints")
    parser.add_argument("--game", default="Breakout", help="Atari game")
    parser.add_argument("--recorded", type=int, default=50_000, help="recorded steps of the game, inserted repeatedly")
    parser.add_argument("--codecs", nargs="+", choices=("zstd", "none"), default=["zstd", "none"])
    parser.add_argument("--folder", type=Path, help="folder for the checkpoints (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    fragments, results = record(args.game, args.recorded, NUM_ENVS).fragments(), {}
    for codec in args.codecs:
        root = Path(tempfile.mkdtemp(prefix="starling-checkpoint-", dir=args.folder))
        try:
            results[codec] = measure(codec, fragments, args.observations, args.more, root)
        finally:
            shutil.rmtree(root)
        print(f"{codec}: {results[codec]}")
    if args.json:
        said = {"observations": args.observations, "more": args.more, "game": args.game, "recorded": args.recorded}
        print(json.dumps({**describe("starling-rl", "numpy", "zstandard"), "settings": said, **results}))


if __name__ == "__main__":
    main()
