"""Cost of elite sampling: env steps per second compared with uniform replay of the same share, in turns.

With `--runtime inline` they are per second of processor time, which other work on the machine hardly changes; acting,
scoring, and learning are then sequential, so the ratio is a lower bound. Also measures how well distances over every
n-th state of a sequence rank the sequences, compared with distances over all states.

    python benchmarks/elite.py [--seconds 10] [--repeat 5] [--runtime processes] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from machine import describe, spread

from starling import tree
from starling.algos.impala.mixed import MixedIMPALA
from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan, plan_threads
from starling.launch.runtime import build_runtime
from starling.runtime.prewarm import prewarm

BATCH = ["algo.batch=32", "algo.unroll=20", "algo.max_lag=2"]
ELITE = "kind: elite, capacity: 1000, distance: lp, p: 2, selection: least_sampled, lambda: 6, anneal: null"
SOURCES = {
    "uniform": "kind: uniform, capacity: 1000",
    "elite": ELITE,
    "elite, every 2": f"{ELITE}, every: 2",
    "elite, every 4": f"{ELITE}, every: 4",
}
STRIDES = (2, 4, 8)


def settings(source: str, more: list[str]) -> list[str]:
    mixture = f"algo.sources=[{{kind: queue, share: 0.5}}, {{share: 0.5, {SOURCES[source]}}}]"
    return [*BATCH, mixture, *more]


def measure(source: str, seconds: float, more: list[str]) -> tuple[float, dict[str, Any]]:
    """Env steps per second of a run after its start-up, and its last metrics."""
    run_plan = RunPlan.from_config(load("impala-minatar-breakout", settings(source, more)))
    set_up_torch(plan_threads(run_plan))
    runtime = build_runtime(run_plan)
    try:
        steps = runtime.run()
        while runtime.updates < 30:
            next(steps)
        runtime.drain_metrics()
        clock = time.process_time if run_plan.config.runtime == "inline" else time.monotonic
        start, before = clock(), runtime.env_steps
        while clock() < start + seconds:
            next(steps)
        return (runtime.env_steps - before) / (clock() - start), runtime.drain_metrics()
    finally:
        runtime.close()


def correlations(updates: int, draws: int) -> dict[int, dict[str, float]]:
    """Strided distances compared with full ones, over candidates of a run's replay: Spearman's rho, and the overlap of
    their nearest sixths.
    """
    runtime: Any = build_runtime(
        RunPlan.from_config(load("impala-minatar-breakout", settings("elite", ["runtime=inline"])))
    )
    for _ in runtime.run():
        if runtime.updates >= updates:
            break
    elite, model = runtime.store.mixture.tables[1], runtime.learner.model
    agents = {stride: _agent(runtime, stride) for stride in (1, *STRIDES)}
    found: dict[int, list[tuple[float, float]]] = {stride: [] for stride in STRIDES}
    for _ in range(draws):
        steps = tree.to_torch(elite.draw_candidates(16, 0.0).trajectory)
        with torch.inference_mode():
            scores = {stride: agent.score(model, 1, steps, steps).numpy() for stride, agent in agents.items()}
        for stride in STRIDES:
            found[stride].append((spearman(scores[1], scores[stride]), overlap(scores[1], scores[stride])))
    runtime.close()
    return {
        stride: {"spearman": round(mean(a for a, _ in pairs), 3), "same_nearest": round(mean(b for _, b in pairs), 3)}
        for stride, pairs in found.items()
    }


def _agent(runtime: Any, stride: int) -> MixedIMPALA:
    """The same agent, but comparing every `stride`-th state."""
    algorithm = runtime.learner.algorithm
    sources = [source.model_copy(update={"every": stride}) for source in algorithm.config.sources]
    return MixedIMPALA(algorithm.config.model_copy(update={"sources": sources}), algorithm.net)


def spearman(one: Any, other: Any) -> float:
    """The rank correlation; no two distances are equal."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def overlap(one: Any, other: Any) -> float:
    """The share of the nearest sixth by `one` that is also in the nearest sixth by `other`."""
    n = len(one) // 6
    return len(set(np.argsort(one)[:n]) & set(np.argsort(other)[:n])) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each turn")
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    parser.add_argument("--runtime", default="processes", choices=["inline", "processes"])
    parser.add_argument("--updates", type=int, default=400, help="updates of the run whose replay is ranked")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    prewarm()
    speeds: dict[str, list[float]] = {name: [] for name in SOURCES}
    costs: dict[str, list[float]] = {name: [] for name in SOURCES}
    for _ in range(args.repeat):
        for name in SOURCES:
            speed, metrics = measure(name, args.seconds, [f"runtime={args.runtime}"])
            speeds[name].append(speed)
            costs[name].append(metrics.get("time/scoring/ms", 0.0))
            print(f"{name:15} {speed:7.0f} steps/s, scoring {costs[name][-1]:.1f} ms per batch", flush=True)
    turns = {name: [a / b for a, b in zip(speeds[name], speeds["uniform"], strict=True)] for name in SOURCES}
    for name, ratios in turns.items():
        print(f"{name}: {median(ratios):.2f} of uniform's speed ({min(ratios):.2f} to {max(ratios):.2f})")
    ranked = correlations(args.updates, 20)
    for stride, found in ranked.items():
        print(f"every {stride}: rank correlation {found['spearman']}, same nearest sixth {found['same_nearest']:.0%}")
    if args.json:
        report: dict[str, Any] = {"settings": vars(args), "correlation": ranked}
        report["ratio"] = {name: spread(ratios) for name, ratios in turns.items()}
        report["steps_per_s"] = {name: spread(values) for name, values in speeds.items()}
        report["scoring_ms"] = {name: spread(values) for name, values in costs.items()}
        print(json.dumps({**describe("starling-rl", "torch"), **report}))


if __name__ == "__main__":
    main()
