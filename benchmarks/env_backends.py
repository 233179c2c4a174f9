"""Env steps per second of one core by backend: Gymnasium and the ALE as Starling uses them, or envpool with as many
envs.

Actions are random, nothing is learned, and contestants take turns. Only in its asynchronous mode does envpool return
the first envs while others still step, which a policy with per-env state cannot use: both step all envs at once.

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
"""Ids in Gymnasium and in envpool, whose v4 has the same physics."""
NUM_ENVS = (1, 8, 32)

Step = Callable[[], None]


def ours(id: str, num_envs: int) -> Step:
    env = make_env(EnvConfig(id=id), num_envs)
    actions = _actions(env.spec.action, num_envs)
    env.reset(np.arange(num_envs))
    return lambda: (env.step(next(actions)), None)[1]


def theirs(id: str, num_envs: int) -> Step:
    import envpool

    args: dict[str, Any] = {"num_envs": num_envs, "num_threads": 1, "seed": 0}
    if id == "Pong-v5":
        args |= {"stack_num": 4, "frame_skip": 4, "repeat_action_probability": 0.25}
    env = envpool.make_gymnasium(id, **args)
    actions = _actions(env.action_space, num_envs)
    env.reset()
    return lambda: (env.step(next(actions)), None)[1]


def _actions(space: Any, num_envs: int) -> Any:
    """Random actions for all envs, repeated indefinitely."""
    rng = np.random.default_rng(0)
    if hasattr(space, "n"):
        some = rng.integers(space.n, size=(64, num_envs))
    else:
        some = rng.uniform(-1.0, 1.0, (64, num_envs, *space.shape)).astype(np.float32)
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
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each contestant's turn")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name, (mine, other) in ENVS.items():
        for num_envs in NUM_ENVS:
            steps = {"starling": ours(mine, num_envs), "envpool": theirs(other, num_envs)}
            found: dict[str, list[float]] = {backend: [] for backend in steps}
            for _ in range(args.rounds):
                for backend, step in steps.items():
                    found[backend].append(num_envs * rate(step, args.seconds))
            ratio = [b / a for a, b in zip(*found.values(), strict=True)]
            results[f"{name} x {num_envs}"] = {backend: spread(values) for backend, values in found.items()} | {
                "envpool / starling": spread(ratio)
            }
            print(f"{name} x {num_envs}: {json.dumps(results[f'{name} x {num_envs}'])}", flush=True)
    if args.json:
        settings = {"rounds": args.rounds, "seconds": args.seconds, "threads": 1}
        said = describe("starling-rl", "envpool", "gymnasium", "ale-py", "mujoco")
        print(json.dumps({**said, "settings": settings, "steps_per_s": results}))


if __name__ == "__main__":
    main()
