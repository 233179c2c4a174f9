"""Sequences per second of R2D2's learner, compared with bare forward and backward passes of the same network.

The replay is filled by acting in the preset's env. `bare` is the unavoidable work for one batch in memory: burn-in of
the online network, its trained steps with gradient, the target network's forward over the whole sequence, and the
backward of a plain loss. `learner` is the learner's step on prefetched batches: loss, gradient, clipping, optimizer,
target, priorities, metrics. `sampling` also samples every batch from the replay and updates its priorities, in one
thread. The three take turns in alternating order, so that a busy machine slows them equally.

    python benchmarks/r2d2_learner.py [--preset r2d2-pong] [--rounds 10] [--json] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import describe, spread

from starling import tree
from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner.learner import Learner, LearnResult
from starling.nets.burn_in import unroll_burnt_in
from starling.types import Sample


def filled(preset: str, overrides: list[str], sequences: int) -> Any:
    """An inline run that has acted until there were `sequences` sequences in replay, and learned once."""
    placed = ["runtime=inline", "inference=local", "actors=1", f"algo.learning_starts={sequences}"]
    runtime = build_runtime(RunPlan.from_config(load(preset, [*overrides, *placed])))
    for _ in runtime.run():
        if runtime.updates:
            return runtime
    raise AssertionError


def bare(learner: Learner, sample: Sample, burn_in: int) -> Callable[[], object]:
    """The passes over one batch that any implementation needs."""
    model: Any = learner.model
    target = copy.deepcopy(model).requires_grad_(False)
    steps: Any = tree.to_torch(sample.trajectory)

    def once() -> None:
        with torch.no_grad():
            target.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        q = unroll_burnt_in(model, steps, burn_in)
        sum(values.square().mean() for values in q.values()).backward()
        model.zero_grad()

    return once


def rates(contestants: dict[str, Callable[[], object]], batch: int, rounds: int) -> dict[str, list[float]]:
    """Sequences per second of each contestant, `rounds` times, in turns."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 1):
        names = list(contestants) if i % 2 else list(contestants)[::-1]
        for name in names:
            start = time.perf_counter()
            contestants[name]()
            if i > 0:  # the first round is a warm-up
                found[name].append(batch / (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="r2d2-pong")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=400, help="sequences in replay")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    set_up_torch(args.threads)
    runtime = filled(args.preset, args.overrides, args.sequences)
    settings, replay = runtime.learner.algorithm.config, runtime.store.mixture
    samples = [replay.sample(settings.batch) for _ in range(4)]

    ready = itertools.cycle(samples)

    def learn(sample: Sample) -> LearnResult:
        result = Learner.step(runtime.learner, sample, 0)
        assert result is not None
        return result

    def sample_and_learn() -> None:
        result = learn(replay.sample(settings.batch))
        if result.priorities is not None:
            replay.reprioritize(result.keys, result.priorities)

    contestants = {
        "bare": bare(runtime.learner, samples[0], settings.burn_in),
        "learner": lambda: learn(next(ready)),
        "sampling": sample_and_learn,
    }
    found = rates(contestants, settings.batch, args.rounds)
    ratios = {
        f"{name}_ratio": spread([mine / theirs for mine, theirs in zip(found[name], found["bare"], strict=True)])
        for name in ("learner", "sampling")
    }
    results = {f"{name}_sequences_per_s": spread(values) for name, values in found.items()} | ratios
    for name, value in results.items():
        print(f"{name}: {value['median']} [{value['low']}, {value['high']}]")
    if args.json:
        said = {"preset": args.preset, "overrides": args.overrides, "rounds": args.rounds, "threads": args.threads}
        print(json.dumps({**describe("starling-rl", "torch", "numpy"), "settings": said, **results}))


if __name__ == "__main__":
    main()
