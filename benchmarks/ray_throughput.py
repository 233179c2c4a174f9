"""Env steps per second of IMPALA on Pong over Ray and with processes on the same machine, in turns within one run.

Both run for some seconds in every round; the result is the median over rounds of their ratio. Also measures the time to
put weights of 7 MB and to get them in eight actors on this node.

    .venv/bin/python benchmarks/ray_throughput.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe, spread

SETTINGS = ("env.num=16", "actors=1", "stop={env_steps: 1000000000}", "threads=1", "seed=1", "log.every=100000000")
RUNTIMES = ("processes", "ray")
WEIGHTS, ACTORS = 7 * 2**20, 8


def steps_per_s(preset: str, runtime: str, settings: list[str], seconds: float) -> float:
    """The speed of a new run, after its first updates and a warm-up."""
    from starling.config.load import load
    from starling.hardware import set_up_torch
    from starling.launch.plan import RunPlan, plan_threads
    from starling.launch.runtime import build_runtime

    run_plan = RunPlan.from_config(load(preset, [*SETTINGS, *settings, f"runtime={runtime}"]))
    set_up_torch(plan_threads(run_plan))
    system = build_runtime(run_plan)
    try:
        going = system.run()
        while system.updates < 3:
            next(going)
        run_until(time.monotonic() + 2.0, going)
        before, started = system.env_steps, time.monotonic()
        run_until(started + seconds, going)
        return (system.env_steps - before) / (time.monotonic() - started)
    finally:
        system.close()


def run_until(end: float, going: Any) -> None:
    while time.monotonic() < end:
        next(going)


def weights_ms(repeat: int) -> list[float]:
    """Milliseconds from putting 7 MB until eight actors hold them, with a single put."""
    import numpy as np
    import ray

    class Holder:
        def take(self, weights: Any) -> int:
            return len(weights)

    holders: list[Any] = [ray.remote(Holder).options(num_cpus=0).remote() for _ in range(ACTORS)]
    weights_array = np.random.default_rng(0).integers(0, 256, WEIGHTS, np.uint8)
    ray.get([holder.take.remote(weights_array[:1]) for holder in holders])
    times = []
    for _ in range(repeat):
        started = time.monotonic()
        reference = ray.put(weights_array)
        ray.get([holder.take.remote(reference) for holder in holders])
        times.append(1000 * (time.monotonic() - started))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="impala-pong")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each measurement")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("settings", nargs="*", help="KEY=VALUE")
    arguments = parser.parse_args()
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(Path(tempfile.mkdtemp(prefix="starling-bench-")) / "token")
    from starling.runtime.prewarm import prewarm
    from starling.runtime.ray.token import ensure_token

    prewarm()
    ensure_token()
    import ray

    ray.init("local", num_cpus=16, object_store_memory=200 * 2**20, include_dashboard=False, log_to_driver=False)
    rounds: dict[str, list[float]] = {runtime: [] for runtime in RUNTIMES}
    for number in range(arguments.repeat):
        for runtime in RUNTIMES if number % 2 == 0 else RUNTIMES[::-1]:
            rounds[runtime].append(steps_per_s(arguments.preset, runtime, arguments.settings, arguments.seconds))
        print(", ".join(f"{name} {values[-1]:,.0f} steps/s" for name, values in rounds.items()), flush=True)
    ratios = [one / other for one, other in zip(rounds["ray"], rounds["processes"], strict=True)]
    times = weights_ms(20)
    print(f"ray at {median(ratios):.3f} of processes; 7 MB to {ACTORS} actors in {median(times):.1f} ms")
    if arguments.json:
        steps = {name: spread(values) for name, values in rounds.items()}
        report = {"steps_per_s": steps, "ratio": spread(ratios), "weights_ms": spread(times)}
        settings = {"preset": arguments.preset, "seconds": arguments.seconds, "repeat": arguments.repeat}
        overrides = [*SETTINGS, *arguments.settings]
        print(
            json.dumps(
                describe("starling-rl", "ray", "torch") | {"settings": settings, "overrides": overrides} | report
            )
        )


if __name__ == "__main__":
    main()
