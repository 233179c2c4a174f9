"""Env steps a second of one core by who steps: Gymnasium and the ALE as used here, or envpool with as many rows.

Actions are random, nothing learns; contestants take turns. envpool steps the first rows it has while others are still
under way only in its asynchronous form, which a policy with a state a row cannot use: both step all rows at once.

    make bench-envpool
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from machine import describe, spread

from starling.config.env import EnvConfig
from starling.envs.registry import make_env

ENVS = {"CartPole": ("CartPole-v1", "CartPole-v1"), "Pong": ("ALE/Pong-v5", "Pong-v5")}
ENVS |= {name: (f"{name}-v5", f"{name}-v4") for name in ("HalfCheetah", "Hopper", "Ant")}
"""As Gymnasium calls them and as envpool does; its v4 has the same physics."""
ROWS = (1, 8, 32)

Step = Callable[[], None]


def ours(id: str, rows: int) -> Step:
    env = make_env(EnvConfig(id=id), rows)
    actions = _actions(env.spec.action, rows)
    env.reset(np.arange(rows))
    return lambda: (env.step(next(actions)), None)[1]


def theirs(id: str, rows: int) -> Step:
    import envpool

    args: dict[str, Any] = {"num_envs": rows, "num_threads": 1, "seed": 0}
    if id == "Pong-v5":
        args |= {"stack_num": 4, "frame_skip": 4, "repeat_action_probability": 0.25}
    env = envpool.make_gymnasium(id, **args)
    actions = _actions(env.action_space, rows)
    env.reset()
    return lambda: (env.step(next(actions)), None)[1]


def _actions(space: Any, rows: int) -> Any:
    """Random actions for all rows, over and over."""
    rng = np.random.default_rng(0)
    if hasattr(space, "n"):
        some = rng.integers(space.n, size=(64, rows))
    else:
        some = rng.uniform(-1.0, 1.0, (64, rows, *space.shape)).astype(np.float32)
    while True:
        yield from some


def rate(step: Step, seconds: float) -> float:
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        step()
        count += 1
    return count / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of every contestant in a round")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name, (mine, other) in ENVS.items():
        for rows in ROWS:
            steps = {"starling": ours(mine, rows), "envpool": theirs(other, rows)}
            found: dict[str, list[float]] = {who: [] for who in steps}
            for _ in range(args.rounds):
                for who, step in steps.items():
                    found[who].append(rows * rate(step, args.seconds))
            ratio = [b / a for a, b in zip(*found.values(), strict=True)]
            results[f"{name} x {rows}"] = {who: spread(values) for who, values in found.items()} | {
                "envpool / starling": spread(ratio)
            }
            print(f"{name} x {rows}: {json.dumps(results[f'{name} x {rows}'])}", flush=True)
    if args.json:
        settings = {"rounds": args.rounds, "seconds": args.seconds, "threads": 1}
        said = describe("starling-rl", "envpool", "gymnasium", "ale-py", "mujoco")
        print(json.dumps({**said, "settings": settings, "steps_per_s": results}))


if __name__ == "__main__":
    main()
