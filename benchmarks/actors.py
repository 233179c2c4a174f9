"""Cost of an env step with 1 to 64 actors: CPU time of all processes together, and wall time.

Env and network cost almost nothing (toy/identity, an MLP of 16 units), so that the overhead of the system remains.
Every actor has 8 envs; batches and the learner's work per step stay the same. A system that scales has a flat line.

    .venv/bin/python benchmarks/actors.py --json --plot docs/images/actors.png
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe, spread

from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.runtime.prewarm import prewarm
from starling.runtime.process_worker import ProcessWorker
from starling.runtime.processes_runtime import ProcessesRuntime

ACTORS = (1, 2, 4, 8, 16, 32, 64)
INFERENCE = ("local", "central")
ENVS_PER_ACTOR = 8
SETTINGS = (
    "runtime=processes",
    "env.id=toy/identity",
    "net.torso.hidden=[16]",
    "net.shared=true",
    "algo.unroll=20",
    "algo.batch=64",
    "algo.max_lag=16",  # enough batches for all 64 actors to act at the same time
    "stop={env_steps: 1000000000}",
    "threads=1",
    "seed=1",
)
TICKS = os.sysconf("SC_CLK_TCK")
LABELS = {"cpu": "CPU of all processes", "wall": "wall"}


@dataclass(frozen=True)
class Point:
    """Microseconds per env step with this number of actors."""

    actors: int
    inference: str
    wall: float
    cpu: float  # of all processes
    learner: float  # of the learning thread in the main process
    hub: float  # of the rest of the main process
    workers: float  # of all other processes


@dataclass(frozen=True)
class Used:
    """CPU seconds and env steps so far, at this time."""

    time: float
    steps: int
    learner: float
    main: float
    workers: float


def cpu_seconds(stat: Path) -> float:
    """User and system time of a process or a thread, from its `stat` in /proc."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def read_usage(runtime: ProcessesRuntime) -> Used:
    workers = [worker for worker in runtime.hub.supervisor.workers.values() if isinstance(worker, ProcessWorker)]
    pids = [worker.process.pid for worker in workers if worker.process is not None]
    return Used(
        time.monotonic(),
        runtime.env_steps,
        cpu_seconds(Path(f"/proc/self/task/{os.getpid()}/stat")),
        cpu_seconds(Path("/proc/self/stat")),
        sum(cpu_seconds(Path(f"/proc/{pid}/stat")) for pid in pids),
    )


def measure(actors: int, inference: str, seconds: float) -> Point:
    """Run this number of actors until all of them work, then measure for some seconds."""
    counts = (f"actors={actors}", f"env.num={actors * ENVS_PER_ACTOR}", f"inference={inference}")
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", [*SETTINGS, *counts])))
    assert isinstance(runtime, ProcessesRuntime), "runtime=processes is set above"
    try:
        steps_iterator = runtime.run()
        warm_up(runtime, steps_iterator)
        before = read_usage(runtime)
        run_for(seconds, steps_iterator)
        return point(actors, inference, before, read_usage(runtime))
    finally:
        runtime.close()


def warm_up(runtime: ProcessesRuntime, steps_iterator: Iterator[None]) -> None:
    """Run until every actor has made a few fragments, and one more second."""
    while True:
        next(steps_iterator)
        produced = runtime.hub.call(runtime.hub.supervisor.produced)
        if len(produced) == len(runtime.hub.credits.actor_slots) and min(produced.values()) >= 3 * 20 * ENVS_PER_ACTOR:
            return run_for(1.0, steps_iterator)


def run_for(seconds: float, steps_iterator: Iterator[None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        next(steps_iterator)


def point(actors: int, inference: str, before: Used, after: Used) -> Point:
    steps = after.steps - before.steps

    def micro(seconds: float) -> float:
        return round(1e6 * seconds / steps, 2)

    main, workers = after.main - before.main, after.workers - before.workers
    learner = after.learner - before.learner
    return Point(
        actors=actors,
        inference=inference,
        wall=micro(after.time - before.time),
        cpu=micro(main + workers),
        learner=micro(learner),
        hub=micro(main - learner),
        workers=micro(workers),
    )


Rounds = list[Point]
"""Repetitions of one measurement."""


def growth(series: list[Rounds], name: str) -> float:
    """Ratio of the cost with the most actors to the lowest cost; medians over the rounds."""
    costs: list[float] = [median(getattr(point, name) for point in rounds) for rounds in series]
    return round(costs[-1] / min(costs), 2)


def plot(results: dict[str, list[Rounds]], path: Path) -> None:
    """Plot medians, with the extremes as error bars."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for color, (inference, series) in enumerate(results.items()):
        for style, name in (("-", "cpu"), (":", "wall")):
            found = [spread([getattr(point, name) for point in rounds]) for rounds in series]
            middle = [one["median"] for one in found]
            reach = [[one["median"] - one["low"] for one in found], [one["high"] - one["median"] for one in found]]
            counts, label = [rounds[0].actors for rounds in series], f"{inference}, {LABELS[name]}"
            axes.errorbar(counts, middle, reach, fmt=f"o{style}", color=f"C{color}", label=label, capsize=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ACTORS, [str(count) for count in ACTORS])
    axes.set_ylim(bottom=0)
    axes.set(xlabel=f"actors, {ENVS_PER_ACTOR} envs each", ylabel="us per env step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of each measurement")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--most", type=int, default=ACTORS[-1], help="maximal number of actors")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    arguments = parser.parse_args()
    prewarm()
    set_up_torch(1)
    counts = [count for count in ACTORS if count <= arguments.most]
    results: dict[str, list[Rounds]] = {inference: [[] for _ in counts] for inference in INFERENCE}
    for _ in range(arguments.repeat):
        for i, count in enumerate(counts):
            for inference in INFERENCE:
                results[inference][i].append(measure(count, inference, arguments.seconds))
                print(line(results[inference][i][-1]), flush=True)
    ratios = {name: {kind: growth(series, kind) for kind in LABELS} for name, series in results.items()}
    for name, ratio in ratios.items():
        print(f"{name}: {counts[-1]} actors cost {ratio['cpu']} (CPU) and {ratio['wall']} (wall) times the minimum")
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.json:
        settings = {
            "envs_per_actor": ENVS_PER_ACTOR,
            "seconds": arguments.seconds,
            "repeat": arguments.repeat,
            "overrides": SETTINGS,
        }
        points = {name: [as_values(rounds) for rounds in series] for name, series in results.items()}
        report = {**describe("starling-rl", "torch", "numpy"), "settings": settings}
        print(json.dumps(report | {"us_per_step": points, "growth": ratios}))


def line(point: Point) -> str:
    return (
        f"{point.inference:8} {point.actors:3} actors: wall {point.wall:7.2f}, CPU {point.cpu:7.2f} us per step"
        f" (learner {point.learner:.2f}, hub {point.hub:.2f}, workers {point.workers:.2f})"
    )


def as_values(rounds: Rounds) -> dict[str, Any]:
    """Median and extremes of every cost for one number of actors."""
    names = ("wall", "cpu", "learner", "hub", "workers")
    costs = {name: spread([getattr(point, name) for point in rounds]) for name in names}
    return {"actors": rounds[0].actors, **costs}


if __name__ == "__main__":
    main()
