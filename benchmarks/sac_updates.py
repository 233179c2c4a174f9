"""SAC updates per second on one core, compared with Stable-Baselines3: batch 256, networks of 256 x 256, HalfCheetah
sizes.

Both have a replay full of random transitions and learn from it: sampling, losses, gradients, optimizers, and targets
count, acting and the env do not. Each has separate processes with one torch thread, the usual number, and they take
turns; the result is the ratio. `starling` is the preset with `compile=true`; `not compiled` and `bfloat16` are
variants, the latter is only useful on CPUs with instructions for it (`avx512_bf16` in /proc/cpuinfo). `products` are
only the matrix products in the formulas of one update; the compiled preset needs 14 of 15 of these, since gradients of
the policy go only through the lower critic of each row.

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
from turns import repeat, serve, take_turns

from starling.config.load import load
from starling.envs.registry import register_env
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

OBSERVATIONS, ACTIONS, BATCH, WIDTH = 17, 6, 256, 256
FILLED = 5_000


class Shapes(gymnasium.Env[Any, Any]):
    """Random observations and rewards with the sizes of HalfCheetah."""

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
    """The learner's step, from sampling a batch to updating the targets."""
    set_up_torch(1)
    register_env("bench/shapes", Shapes)
    settings = ["env.id=bench/shapes", f"algo.learning_starts={FILLED}", "threads=1", *choices]
    runtime: Any = build_runtime(RunPlan.from_config(load("sac-halfcheetah", settings)))
    for _ in runtime.run():
        if runtime.updates:
            break

    replay = runtime.store

    def update() -> None:
        """Without the limit on updates per step."""
        runtime.learner.step(replay.mixture.sample(BATCH), FILLED)

    return repeat(update)


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
        for _ in range(8):  # policy for both observations, two targets, two critics for taken and for new actions
            forward()
        for _ in range(5):  # both critics for their own losses, both for the policy's, and the policy
            to_inputs()
        for _ in range(2):
            grad @ first.T  # only down to the action
        for _ in range(3):
            to_weights()

    return repeat(update)


OURS, PEER = "starling", "stable-baselines3"
CONTESTANTS: dict[str, Callable[[], Callable[[int], object]]] = {
    OURS: partial(ours, "compile=true"),
    "starling, not compiled": partial(ours, "compile=false"),
    "starling, bfloat16": partial(ours, "compile=true", "precision=bfloat16"),
    PEER: theirs,
    "products": products,
}
WARM_UP = 50
"""Updates before timing starts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--processes", type=int, default=3, help="processes per contestant")
    parser.add_argument("--updates", type=int, default=20, help="updates per process and round")
    parser.add_argument("--contest", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    if args.contest is not None:
        serve(CONTESTANTS[args.contest](), WARM_UP)
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
