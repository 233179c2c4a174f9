"""How long a checkpoint of a full replay holds training up, and how long it takes in all, for both codecs.

A prioritized replay of 84x84x4 observations (random play of an Atari game, inserted over and over) is saved, then again
after some more steps, and restored. While a checkpoint is written, steps go on being inserted and batches sampled;
`slowest_turn_s` is the longest that one such turn took meanwhile, `slowest_turn_before_s` what it was before.

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
from starling.tools.benchmark.replay_memory import BATCH, ROWS, table_of
from starling.types import Fragment

TURN_SECONDS = 0.05
"""A fragment of 128 steps is inserted and a batch learned from so often: 2,560 env steps a second."""
TURNS_BEFORE = 100


def insert(table: Table, fragments: Iterator[Fragment], steps: int) -> None:
    for _ in range(steps // (FRAGMENT * ROWS) + 1):
        table.insert(next(fragments))


def turn(table: Table, fragments: Iterator[Fragment]) -> float:
    """Seconds that it takes to insert a fragment, sample a batch and update its priorities."""
    started = time.perf_counter()
    table.insert(next(fragments))
    sample = table.sample(BATCH)
    assert sample is not None, "the table is full"
    table.reprioritize(sample.keys, np.linspace(0.1, 1, BATCH))
    return time.perf_counter() - started


def save(saver: Saver, root: Path, table: Table, fragments: Iterator[Fragment]) -> dict[str, float]:
    """Save while the table goes on being used."""
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
    """Of the next batches, observations, keys and chances alike."""
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
    again = table_of(observations, codec)
    again.set_state(checkpoint.find(root)[1]["store"])
    seconds = round(time.perf_counter() - started, 3)
    return {**saved, "restore_s": seconds, "restored_exactly": digest(again) == expected}


def measure_saving(
    codec: Codec, fragments: Iterator[Fragment], observations: int, more: int, root: Path
) -> tuple[dict[str, object], str]:
    """What saving took, and the digest of what a restored table would sample."""
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
    parser.add_argument("--observations", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=50_000, help="steps between two checkpoints")
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--recorded", type=int, default=50_000, help="real steps of the game")
    parser.add_argument("--codecs", nargs="+", choices=("zstd", "none"), default=["zstd", "none"])
    parser.add_argument("--folder", type=Path, help="where the checkpoints are written (default: for temporary files)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    fragments, results = record(args.game, args.recorded, ROWS).fragments(), {}
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
