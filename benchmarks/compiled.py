"""Effect of `compile=true` on the updates of every algorithm: the learner's step, compiled and not, in turns.

Each runs in a separate process with one torch thread, and learns repeatedly from the first batch of its run, so that
acting, the env, and the replay do not count. A ratio above 1 is the gain of compiling; R2D2 shows that it costs nothing
where torch cannot compile a loss as a whole, which then runs eagerly.

    make install && .venv/bin/python benchmarks/compiled.py --json
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from typing import Any

from machine import describe, spread
from turns import repeat, serve, take_turns

from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

EARLY = "algo.learning_starts=300"
PRESETS: dict[str, list[str]] = {
    "ppo-cartpole": [],
    "ppo-halfcheetah": [],
    "ppo-minatar-breakout": [],
    "ppo-rnd-deepsea": [],
    "dqn-cartpole": [EARLY],
    "dqn-minatar-breakout": [EARLY],
    "impala-cartpole": [],
    "impala-minatar-breakout": [],
    "impact-cartpole": [],
    "sac-pendulum": [EARLY],
    "sac-halfcheetah": [EARLY],
    "r2d2-cartpole": ["algo.learning_starts=10"],
}
WARM_UP = 10


def learner_of(preset: str, compiled: bool) -> Any:
    """A learner that has made its first update, and whose `step` repeats it with the same batch."""
    set_up_torch(1)
    choices = ["runtime=inline", "threads=1", "eval.every=null", f"compile={str(compiled).lower()}"]
    runtime: Any = build_runtime(RunPlan.from_config(load(preset, [*PRESETS[preset], *choices])))
    learner, store = runtime.learner, runtime.store
    samples: list[Any] = []

    step = learner.step

    def recording_step(sample: Any, env_steps: int) -> Any:
        samples.append(sample)
        return step(sample, env_steps)

    learner.step = recording_step
    for _ in runtime.run():
        if runtime.updates:
            break
    learner.step = lambda: step(samples[0], store.env_steps)
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each")
    parser.add_argument("--only", choices=PRESETS, action="append", help="a preset; may be repeated")
    parser.add_argument("--contest", nargs=2, metavar=("PRESET", "COMPILE"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    if args.contest is not None:
        preset, wanted = args.contest
        learner = learner_of(preset, wanted == "compiled")
        serve(repeat(learner.step), WARM_UP)
        return
    results: dict[str, Any] = {}
    for preset in args.only or PRESETS:
        commands = {name: [sys.executable, __file__, "--contest", preset, name] for name in ("plain", "compiled")}
        updates = 3 if preset.startswith("ppo") else 20  # an update of PPO has many optimizer steps
        found = take_turns(commands, updates, args.rounds)
        milliseconds = {name: round(1e3 / median(rates), 2) for name, rates in found.items()}
        ratio = spread([a / b for a, b in zip(found["compiled"], found["plain"], strict=True)])
        results[preset] = {**milliseconds, "ratio": ratio}
        print(
            f"{preset}: {milliseconds} ms per update, {ratio['median']} [{ratio['low']}, {ratio['high']}] times as many"
        )
    if args.json:
        print(json.dumps({**describe("starling-rl", "torch"), "settings": {"threads": 1}, "updates": results}))


if __name__ == "__main__":
    main()
