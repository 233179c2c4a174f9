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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import describe

from starling.blueprint import draw, set_up_torch
from starling.config.load import load
from starling.runtime.prewarm import prewarm
from starling.runtime.processes import ProcessesRuntime
from starling.topology import build

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
    steps: int


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
    pids = [worker.process.pid for worker in runtime.hub.crew.workers.values() if worker.process is not None]
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
    runtime = build(draw(load("impala-cartpole", [*SETTINGS, *counts])))
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
        produced = runtime.hub.call(runtime.hub.crew.produced)
        if len(produced) == len(runtime.hub.credits.seats) and min(produced.values()) >= 3 * 20 * ROWS:
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
        steps=steps,
    )


def middle(points: list[Point]) -> Point:
    """The repetition with the median CPU time."""
    return next(p for p in points if p.cpu == sorted(one.cpu for one in points)[len(points) // 2])


def growth(points: list[Point], name: str) -> float:
    """How many times the least cost of all counts the most actors cost."""
    costs = [getattr(point, name) for point in points]
    return round(float(costs[-1] / min(costs)), 2)


def plot(results: dict[str, list[Point]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for inference, points in results.items():
        counts = [point.actors for point in points]
        (line,) = axes.plot(counts, [p.cpu for p in points], "o-", label=f"{inference}: CPU, all processes")
        axes.plot(counts, [p.wall for p in points], "o:", color=line.get_color(), label=f"{inference}: wall")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ACTORS, [str(n) for n in ACTORS])
    axes.set_ylim(bottom=0)
    axes.set(xlabel=f"actors, {ROWS} env rows each", ylabel="us an env step", title="What the system costs")
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
    found: dict[tuple[str, int], list[Point]] = {}
    for _ in range(arguments.repeat):
        for inference in INFERENCE:
            for count in counts:
                point = measure(count, inference, arguments.seconds)
                found.setdefault((inference, count), []).append(point)
                print(line(point), flush=True)
    results = {inference: [middle(found[inference, count]) for count in counts] for inference in INFERENCE}
    summary = {name: {kind: growth(points, kind) for kind in ("cpu", "wall")} for name, points in results.items()}
    for name, ratios in summary.items():
        print(f"{name}: {counts[-1]} actors cost {ratios['cpu']} (CPU) and {ratios['wall']} (wall) of the least")
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.json:
        print(json.dumps(report(arguments, results, summary)))


def line(point: Point) -> str:
    return (
        f"{point.inference:8} {point.actors:3} actors: wall {point.wall:7.2f}, CPU {point.cpu:7.2f} us a step"
        f" (learner {point.learner:.2f}, hub {point.hub:.2f}, workers {point.workers:.2f})"
    )


def report(
    arguments: argparse.Namespace, results: dict[str, list[Point]], summary: dict[str, dict[str, float]]
) -> dict[str, Any]:
    settings = {"rows": ROWS, "seconds": arguments.seconds, "repeat": arguments.repeat, "overrides": SETTINGS}
    points = {name: [asdict(point) for point in found] for name, found in results.items()}
    return {**describe("starling-rl", "torch", "numpy"), "settings": settings, "us_a_step": points, "growth": summary}


if __name__ == "__main__":
    main()
