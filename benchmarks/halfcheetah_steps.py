"""Time per env step of HalfCheetah, training included, compared with Stable-Baselines3: SAC and PPO.

Starling's presets and the peer with its tuned settings (`halfcheetah.py` trains both to the end), each with its default
number of threads. Each runs in a separate process, and they take turns; the result is the ratio. SAC starts to learn
after 1,000 steps instead of 10,000; PPO's turns are whole rollouts.

    make bench-install && .venv-bench/bin/python benchmarks/halfcheetah_steps.py --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from halfcheetah import ALGORITHMS, CONTESTANTS, peer, peer_env
from machine import describe, spread
from turns import serve, take_turns

TURN = {"sac": 500, "ppo": 5_120}
"""Env steps per turn."""
WARM_UP = {"sac": 1_200, "ppo": 1_024}
"""Env steps before timing starts: more than SAC's warm-up, and two of PPO's rollouts."""
LEARNING_STARTS = 1_000


def ours(algorithm: str) -> Callable[[int], object]:
    """A run without evaluation and files."""
    from starling.config.load import load
    from starling.hardware import set_up_torch
    from starling.launch.plan import RunPlan, plan_threads
    from starling.launch.runtime import build_runtime

    settings = [f"algo.learning_starts={LEARNING_STARTS}"] if algorithm == "sac" else []
    run_plan = RunPlan.from_config(load(f"{algorithm}-halfcheetah", [*settings, "eval.every=null"]))
    set_up_torch(plan_threads(run_plan))
    runtime: Any = build_runtime(run_plan)
    going = runtime.run()

    def run(steps: int) -> None:
        target = runtime.env_steps + steps
        while runtime.env_steps < target:
            next(going)

    return run


def theirs(algorithm: str) -> Callable[[int], object]:
    model = peer(algorithm, peer_env(algorithm, 0, gamma=0.98), seed=0)
    if algorithm == "sac":
        model.learning_starts = LEARNING_STARTS
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def compare(algorithm: str, rounds: int) -> dict[str, Any]:
    """Milliseconds per step, and the ratio of Starling's time to the peer's."""
    commands = {name: [sys.executable, __file__, "--contest", algorithm, name] for name in CONTESTANTS}
    found = take_turns(commands, TURN[algorithm], rounds)
    mine, other = (found[name] for name in CONTESTANTS)
    return {
        **{f"{name}, ms": spread([1e3 / speed for speed in found[name]]) for name in CONTESTANTS},
        "time ratio": spread([b / a for a, b in zip(mine, other, strict=True)]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=ALGORITHMS, help="one algorithm")
    parser.add_argument("--contest", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    if args.contest is not None:
        algorithm, name = args.contest
        serve((ours if name == CONTESTANTS[0] else theirs)(algorithm), WARM_UP[algorithm])
        return
    results = {algorithm: compare(algorithm, args.rounds) for algorithm in ((args.only,) if args.only else ALGORITHMS)}
    for algorithm, found in results.items():
        print(f"{algorithm}: {json.dumps(found)}")
    if args.json:
        said = describe("starling-rl", "stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
        print(json.dumps({**said, "settings": {"rounds": args.rounds, "turn": TURN}, "results": results}))


if __name__ == "__main__":
    main()
