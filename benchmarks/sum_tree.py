"""Batches per second of the sum tree (sample, then update the sampled leaves), compared with installed peers.

    python benchmarks/sum_tree.py [--capacity 1048576] [--batch 256] [--seconds 1] [--repeats 7] [--json]

Two measurements: `tree` is the bare tree with masses drawn outside (peer: tianshou's SegmentTree); `sampler` also
converts priorities into masses and returns probabilities (peer: cpprb's PrioritizedReplayBuffer with one float per
transition, which also returns importance weights). Contestants take turns, so that a busy machine slows them equally.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import describe

from starling.replay.samplers import Prioritized
from starling.replay.sum_tree import SumTree

Step = Callable[[], None]
PEERS = {"tianshou": "tree", "cpprb": "sampler"}
ALPHA, BETA = 0.6, 0.4


def our_tree(capacity: int, batch: int, rng: np.random.Generator) -> Step:
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), rng.random(capacity) + 1e-3)

    def step() -> None:
        indices = tree.sample(rng.random(batch))
        tree.set(indices, rng.random(batch))

    return step


def our_sampler(capacity: int, batch: int, rng: np.random.Generator) -> Step:
    sampler = Prioritized(capacity, exponent=ALPHA)
    sampler.add(np.arange(capacity), rng.random(capacity) + 1e-3)

    def step() -> None:
        draw = sampler.draw(batch, rng)
        assert draw is not None
        sampler.update(draw.slots, rng.random(batch))

    return step


def tianshou_tree(capacity: int, batch: int, rng: np.random.Generator) -> Step:
    from tianshou.data import SegmentTree

    tree = SegmentTree(capacity)
    tree[np.arange(capacity)] = rng.random(capacity) + 1e-3

    def step() -> None:
        indices = tree.get_prefix_sum_idx(rng.random(batch) * tree.reduce())
        tree[indices] = rng.random(batch)

    return step


def cpprb_sampler(capacity: int, batch: int, rng: np.random.Generator) -> Step:
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(capacity, {"x": {"shape": 1}}, alpha=ALPHA)
    buffer.add(x=np.zeros((capacity, 1), np.float32), priorities=rng.random(capacity) + 1e-3)

    def step() -> None:
        drawn = buffer.sample(batch, beta=BETA)
        buffer.update_priorities(drawn["indexes"], rng.random(batch))

    return step


BUILDERS = {"tianshou": tianshou_tree, "cpprb": cpprb_sampler}


def rate(step: Step, seconds: float) -> float:
    """Steps per second, measured for at least `seconds`."""
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for _ in range(20):
            step()
        count += 20
    return count / passed


def measure(contestants: dict[str, Step], seconds: float, repeats: int) -> dict[str, list[float]]:
    """Rates of all contestants, in turns, after one warm-up each."""
    for step in contestants.values():
        rate(step, 0.1)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, step in contestants.items():
            rates[name].append(rate(step, seconds))
    return rates


def version(package: str) -> str | None:
    return importlib.metadata.version(package) if importlib.util.find_spec(package) else None


def report(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, spreads, and the ratio to each peer."""
    median = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    peers = {name: median[name] for name in PEERS if name in median}
    ratios = {name: round(median[PEERS[name]] / value, 2) for name, value in peers.items()}
    return {
        "batches_per_s": median["tree"],
        "sampler_batches_per_s": median["sampler"],
        "peers": peers,
        "ratios": ratios,
        "ratio_to_best_peer": ratios[max(peers, key=lambda name: peers[name])] if peers else None,
        "spread": {name: [round(min(values), 1), round(max(values), 1)] for name, values in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="batches per second of the sum tree and of peers")
    parser.add_argument("--capacity", type=int, default=2**20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each repetition")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    versions = {name: version(name) for name in ("numpy", "numba", *PEERS)}
    builders = {"tree": our_tree, "sampler": our_sampler}
    builders |= {name: BUILDERS[name] for name in PEERS if versions[name]}
    rng = np.random.default_rng(0)
    contestants = {name: build(args.capacity, args.batch, rng) for name, build in builders.items()}
    rates = measure(contestants, args.seconds, args.repeats)
    for name, values in rates.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:10} {middle:9.0f} batches/s (from {low:.0f} to {high:.0f} over {len(values)} turns)")
    for name in PEERS:
        if not versions[name]:
            print(f"{name:10} not installed here, not measured")
    found = report(rates)
    for name, ratio in found["ratios"].items():
        print(f"{PEERS[name]} / {name}: {ratio}")
    if args.json:
        settings = {key: getattr(args, key) for key in ("capacity", "batch", "seconds", "repeats")}
        print(json.dumps(describe("numpy", "numba", *PEERS) | {"settings": settings} | found))


if __name__ == "__main__":
    main()
