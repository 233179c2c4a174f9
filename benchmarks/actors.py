"""What an env step costs with 1 to 64 actors: CPU time of all processes together, and wall time.

The env and the network are next to nothing (toy/identity, an MLP of 16 units), so what is left is what the system
itself adds. Every actor has 8 env rows; batches stay the same, and so does the work of the learner for a step. A system
that scales has a flat line.

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
from starling.runtime.processes import ProcessesRuntime

ACTORS = (1, 2, 4, 8, 16, 32, 64)
INFERENCE = ("local", "central")
ROWS = 8
SETTINGS = (
    "runtime=processes",
    "env.id=toy/identity",
    "net.torso.hidden=[16]",
    "net.shared=true",
    "algo.unroll=20",
    "algo.batch=64",
    "algo.max_lag=16",  # so many batches that all 64 actors may be under way at once
    "stop={env_steps: 1000000000}",
    "threads=1",
    "seed=1",
)
TICKS = os.sysconf("SC_CLK_TCK")
LABELS = {"cpu": "CPU of all processes", "wall": "wall"}


@dataclass(frozen=True)
class Point:
    """Microseconds an env step takes with so many actors."""

    actors: int
    inference: str
    wall: float
    cpu: float  # of all processes
    learner: float  # of that in the main process's learning thread
    hub: float  # and in the rest of the main process
    workers: float  # and in all others


@dataclass(frozen=True)
class Used:
    """CPU seconds so far, and how many env steps by when."""

    time: float
    steps: int
    learner: float
    main: float
    workers: float


def cpu_seconds(stat: Path) -> float:
    """User and system time of a process or a thread, from its `stat` in /proc."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def look(runtime: ProcessesRuntime) -> Used:
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
    """Run so many actors until all of them work, then for so many seconds."""
    counts = (f"actors={actors}", f"env.num={actors * ROWS}", f"inference={inference}")
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", [*SETTINGS, *counts])))
    assert isinstance(runtime, ProcessesRuntime), "runtime=processes is set above"
    try:
        going = runtime.run()
        warm_up(runtime, going)
        before = look(runtime)
        run_for(seconds, going)
        return point(actors, inference, before, look(runtime))
    finally:
        runtime.close()


def warm_up(runtime: ProcessesRuntime, going: Iterator[None]) -> None:
    """Until every actor has made a few fragments, and a second on."""
    while True:
        next(going)
        produced = runtime.hub.call(runtime.hub.supervisor.produced)
        if len(produced) == len(runtime.hub.credits.actor_slots) and min(produced.values()) >= 3 * 20 * ROWS:
            return run_for(1.0, going)


def run_for(seconds: float, going: Iterator[None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        next(going)


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
"""The same measurement, several times."""


def growth(series: list[Rounds], name: str) -> float:
    """How many times the least cost of all counts the most actors cost; medians of the rounds."""
    costs: list[float] = [median(getattr(point, name) for point in rounds) for rounds in series]
    return round(costs[-1] / min(costs), 2)


def plot(results: dict[str, list[Rounds]], path: Path) -> None:
    """Medians, and the extremes as bars."""
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
    axes.set(xlabel=f"actors, {ROWS} env rows each", ylabel="us an env step")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured with each number of actors")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--most", type=int, default=ACTORS[-1], help="no more actors than these")
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
        print(f"{name}: {counts[-1]} actors cost {ratio['cpu']} (CPU) and {ratio['wall']} (wall) times the least")
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.json:
        settings = {"rows": ROWS, "seconds": arguments.seconds, "repeat": arguments.repeat, "overrides": SETTINGS}
        points = {name: [as_values(rounds) for rounds in series] for name, series in results.items()}
        report = {**describe("starling-rl", "torch", "numpy"), "settings": settings}
        print(json.dumps(report | {"us_a_step": points, "growth": ratios}))


def line(point: Point) -> str:
    return (
        f"{point.inference:8} {point.actors:3} actors: wall {point.wall:7.2f}, CPU {point.cpu:7.2f} us a step"
        f" (learner {point.learner:.2f}, hub {point.hub:.2f}, workers {point.workers:.2f})"
    )


def as_values(rounds: Rounds) -> dict[str, Any]:
    """Median and extremes of every cost with one number of actors."""
    names = ("wall", "cpu", "learner", "hub", "workers")
    costs = {name: spread([getattr(point, name) for point in rounds]) for name in names}
    return {"actors": rounds[0].actors, **costs}


if __name__ == "__main__":
    main()
