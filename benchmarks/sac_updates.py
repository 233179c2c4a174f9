"""SAC updates a second on one core, against Stable-Baselines3: batch 256, networks of 256 x 256, HalfCheetah's shapes.

Both have a replay full of random transitions and learn from it: sampling, losses, gradients, optimizers and targets are
counted, acting and the env are not. Each has processes of its own with one torch thread, as those who use it have it,
and they take turns; what counts is the ratio. `starling` is the preset as it comes, compiled; `not compiled` and
`bfloat16` are what they say, the latter pays where the CPU has instructions for it (`avx512_bf16` in /proc/cpuinfo).
`products` are the matrix products of one update as its formulas have them, alone; of these the compiled preset leaves
out one in fifteen, since a row's gradient goes through its lowest critic alone.

    make bench-install && .venv-bench/bin/python benchmarks/sac_updates.py --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from machine import describe, spread
from turns import repeated, serve, take_turns

from starling.config.load import load
from starling.envs.registry import register_env
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

OBSERVATIONS, ACTIONS, BATCH, WIDTH = 17, 6, 256, 256
FILLED = 5_000


class Shapes(gymnasium.Env[Any, Any]):
    """Random observations and rewards in the shapes of HalfCheetah."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self.np_random.normal(size=OBSERVATIONS), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self.np_random.normal(size=OBSERVATIONS), float(action[0]), False, self._step == 1000, {}


def ours(*choices: str) -> Callable[[int], object]:
    """The learner's step, from drawing a batch to moving the targets."""
    set_up_torch(1)
    register_env("bench/shapes", Shapes)
    settings = ["env.id=bench/shapes", f"algo.learning_starts={FILLED}", "threads=1", *choices]
    runtime: Any = build_runtime(RunPlan.from_config(load("sac-halfcheetah", settings)))
    for _ in runtime.run():
        if runtime.updates:
            break

    replay = runtime.store

    def update() -> None:
        """Without the limit of updates per step."""
        runtime.learner.step(replay.mixture.sample(BATCH), FILLED)

    return repeated(update)


def theirs() -> Callable[[int], object]:
    """`SAC.train` with its defaults, which are these sizes."""
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", Shapes(), learning_starts=FILLED, buffer_size=1_000_000, device="cpu", seed=0)
    model.learn(FILLED + 1)
    return lambda times: model.train(gradient_steps=times, batch_size=BATCH)


def products() -> Callable[[int], object]:
    """Every matrix product of an update, forward and backward, once each, with one set of random operands."""
    set_up_torch(1)
    wide, small = OBSERVATIONS + ACTIONS, torch.randn
    x, h, grad = small(BATCH, wide), small(BATCH, WIDTH), small(BATCH, WIDTH)
    first, hidden, last = small(wide, WIDTH), small(WIDTH, WIDTH), small(WIDTH, 2 * ACTIONS)
    out = small(BATCH, 2 * ACTIONS)

    def forward() -> None:
        x @ first, h @ hidden, h @ last

    def to_inputs() -> None:
        out @ last.T, grad @ hidden.T

    def to_weights() -> None:
        h.T @ out, h.T @ grad, x.T @ grad

    def update() -> None:
        for _ in range(8):  # policy here and there, two targets, two critics of what was done and of what would be
            forward()
        for _ in range(5):  # both critics for themselves, both for the policy, the policy
            to_inputs()
        for _ in range(2):
            grad @ first.T  # as far as the action
        for _ in range(3):
            to_weights()

    return repeated(update)


OURS, PEER = "starling", "stable-baselines3"
CONTESTANTS: dict[str, Callable[[], Callable[[int], object]]] = {
    OURS: partial(ours, "compile=true"),
    "starling, not compiled": partial(ours, "compile=false"),
    "starling, bfloat16": partial(ours, "compile=true", "precision=bfloat16"),
    PEER: theirs,
    "products": products,
}
WARM = 50
"""Updates before any is timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--processes", type=int, default=3, help="of each contestant")
    parser.add_argument("--updates", type=int, default=20, help="of each process in a round")
    parser.add_argument("--contest", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    if args.contest is not None:
        serve(CONTESTANTS[args.contest](), WARM)
        return
    commands = {name: [sys.executable, __file__, "--contest", name] for name in CONTESTANTS}
    found = take_turns(commands, args.updates, args.rounds, args.processes)
    results: dict[str, Any] = {name: spread(values) for name, values in found.items()}
    for name in [name for name in CONTESTANTS if name.startswith(OURS)]:
        results[f"{name} / {PEER}"] = spread([a / b for a, b in zip(found[name], found[PEER], strict=True)])
    for name, value in results.items():
        print(f"{name}: {value['median']} [{value['low']}, {value['high']}]")
    if args.json:
        chosen = {"rounds": args.rounds, "updates": args.updates, "processes": args.processes}
        settings = {"batch": BATCH, "width": WIDTH, "threads": 1, **chosen}
        said = describe("starling-rl", "stable-baselines3", "torch", "numpy")
        print(json.dumps({**said, "settings": settings, "updates_per_s": results}))


if __name__ == "__main__":
    main()
