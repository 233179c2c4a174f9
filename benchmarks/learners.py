"""Two learners with one thread each compared with one learner with two: updates per second, and the all-reduce's cost.

Every learner has one batch of its preset's env in memory, as prefetched in a run: the one has the whole batch, each of
the two has half of it. `two` is the learner's step as in a run: ranks agree that each has a batch, and all-reduce their
gradients over gloo. `apart` is the same without the all-reduce. The three take turns in alternating order, so that a
busy machine slows them equally. `reduction_share` is the share of time that ranks of `two` spend in the all-reduce,
including waiting for each other; `overhead` is how much slower `two` is than `apart`.

    python benchmarks/learners.py [--preset impala-pong] [--rounds 8] [--seconds 5] [--json] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from machine import describe, spread

from starling.actor.usage import Usage, read
from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.learner.group import SingleLearner
from starling.runtime.distributed_learners import DistributedLearners, RendezvousInfo
from starling.tools.benchmark.workload import Work
from starling.types import Tensor

PLACED = ["runtime=inline", "inference=local", "actors=1"]
TURNS = {"one": ["whole"], "two": ["half 0", "half 1"], "apart": ["half 0", "half 1"]}


class WithoutAllReduce:
    """Ranks that agree on batches but do not share gradients."""

    def __init__(self, ranks: DistributedLearners) -> None:
        self.size, self.sync_env_steps, self.total, self.all_reduce_min = (
            ranks.size,
            ranks.sync_env_steps,
            ranks.total,
            ranks.all_reduce_min,
        )

    def all_reduce_sum(self, tensor: Tensor) -> None: ...

    def all_equal(self, fingerprint: Any) -> bool:
        return True


def work(order: dict[str, Any]) -> None:
    """One learner process: does the number of updates that it reads, and prints their time and the waiting time."""
    set_up_torch(order["threads"])
    learning, usage = Work(RunPlan.from_config(load(order["preset"], [*order["overrides"], *PLACED]))), Usage()
    ranks: dict[str, Any] = {"one": SingleLearner()}
    if order["rank"] is not None:
        store = dist.FileStore(order["file"], 2)  # type: ignore[attr-defined]
        meeting = RendezvousInfo(store, order["rank"], 2, timeout=60.0)
        ranks["two"] = DistributedLearners(meeting, usage)
        ranks["apart"] = WithoutAllReduce(ranks["two"])
    print("ready", flush=True)
    for line in sys.stdin:
        turn, updates = line.split()
        learning.restore()
        learning.learner.group = ranks[turn]
        before, begun = read(usage.cells)["wait_out"], time.perf_counter()
        for _ in range(int(updates)):
            learning.train()
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "reducing": (read(usage.cells)["wait_out"] - before) / 1e9}), flush=True)


def halves(preset: str, overrides: list[str]) -> list[str]:
    """Overrides that halve the batch."""
    config = load(preset, overrides)
    batch = getattr(config.algo, "batch", None)
    return [f"env.num={config.env.num // 2}"] if batch is None else [f"algo.batch={batch // 2}"]


class Learners:
    """The learner processes, some of which work in each turn."""

    def __init__(self, preset: str, overrides: list[str], file: Path, stack: ExitStack) -> None:
        half = [*overrides, *halves(preset, overrides)]
        orders: dict[str, dict[str, Any]] = {"whole": {"threads": 2, "overrides": overrides, "rank": None}}
        orders |= {f"half {rank}": {"threads": 1, "overrides": half, "rank": rank} for rank in range(2)}
        self._processes = {}
        for name, order in orders.items():
            command = [sys.executable, __file__, "--work", json.dumps({"preset": preset, "file": str(file), **order})]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            self._processes[name] = process
        for process in self._processes.values():
            assert process.stdout is not None
            process.stdout.readline()

    def turn(self, name: str, updates: int) -> tuple[float, float]:
        """Updates per second, and the share of time spent in the all-reduce."""
        chosen = [self._processes[each] for each in TURNS[name]]
        for process in chosen:
            assert process.stdin is not None
            process.stdin.write(f"{name} {updates}\n")
            process.stdin.flush()
        replies = [json.loads(process.stdout.readline()) for process in chosen if process.stdout is not None]
        seconds = max(each["seconds"] for each in replies)
        return updates / seconds, sum(each["reducing"] for each in replies) / len(replies) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="impala-pong")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="approximate duration of one turn")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    if args.work:
        work(json.loads(args.work))
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        learners = Learners(args.preset, args.overrides, folder / "meeting", stack)
        rate, _ = learners.turn("one", 2)
        updates = max(2, int(rate * args.seconds))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in TURNS}
        for i in range(args.rounds + 1):
            for name in list(TURNS)[:: 1 if i % 2 else -1]:
                result = learners.turn(name, updates)
                if i > 0:  # the first round is a warm-up
                    found[name].append(result)
    rates = {name: [rate for rate, _ in pairs] for name, pairs in found.items()}
    results = {f"{name}_updates_per_s": spread(values) for name, values in rates.items()} | {
        "two_against_one": spread([two / one for two, one in zip(rates["two"], rates["one"], strict=True)]),
        "reduction_share": spread([share for _, share in found["two"]]),
        "overhead": spread([1 - two / apart for two, apart in zip(rates["two"], rates["apart"], strict=True)]),
    }
    for name, value in results.items():
        print(f"{name}: {value['median']} [{value['low']}, {value['high']}]")
    if args.json:
        replies = {"preset": args.preset, "overrides": args.overrides, "rounds": args.rounds, "updates": updates}
        print(json.dumps({**describe("starling-rl", "torch", "numpy"), "settings": replies, **results}))


if __name__ == "__main__":
    main()
