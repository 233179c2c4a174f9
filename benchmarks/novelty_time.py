"""What share of an actor's time NGU's intrinsic reward takes, with memories of an episode that are full.

One actor, one thread, the networks and the env of a preset; processor time of this process, so that what else the
machine does counts little. Each step is timed in its parts, and the shares are those of all steps together.

    python benchmarks/novelty_time.py [--preset ngu-montezuma] [--rows 16] [--steps 200] [--json] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from gymnasium import spaces
from machine import describe, spread

from starling import tree
from starling.blueprint import build_model, draw
from starling.config.load import load
from starling.envs.registry import make_env
from starling.envs.vector import VectorEnv
from starling.hardware import set_up_torch
from starling.roles import noise
from starling.roles.policy import Policy, RowGroup


class Stopwatch:
    """Processor seconds by name, a number a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name].append(time.process_time() - start)


def fill(policy: Policy, group: RowGroup, env: VectorEnv, actions: int) -> None:
    """Let every memory hold what all rows saw in as many random steps as it takes, row after row."""
    memory, rng = group.memory["episode"], np.random.default_rng(0)
    entries, rows = memory["entries"], len(group.rows)
    steps = -(-entries.shape[1] // rows)
    seen = env.reset(noise.seeds(1, group.rows, 0))
    walk = []
    with torch.inference_mode():
        for _ in range(steps):
            walk.append(policy.model.embedding.encode(tree.to_torch(seen.obs, entries.device)))
            seen = env.step(rng.integers(0, actions, rows))
        entries.copy_(torch.stack(walk, 1).flatten(0, 1)[: entries.shape[1]])


def keep_full(group: RowGroup) -> None:
    """Let every row be as far in its episode as its memory reaches; an end would empty it."""
    memory = group.memory["episode"]
    memory["count"].clamp_(min=memory["entries"].shape[1])


def act(preset: str, overrides: list[str], rows: int, steps: int) -> dict[str, list[float]]:
    """Seconds of every step, part by part."""
    blueprint = draw(load(preset, [f"env.num={rows}", *overrides]))
    set_up_torch(1)
    policy = Policy(blueprint.algorithm, build_model(blueprint), total_rows=rows, explore=True)
    env, watch = make_env(blueprint.config.env, rows), Stopwatch()
    ids = np.arange(rows)
    group = policy.group(ids, 0)
    assert isinstance(blueprint.env.action, spaces.Discrete), "what NGU needs"
    fill(policy, group, env, int(blueprint.env.action.n))
    seen = env.reset(noise.seeds(0, ids, 0))
    try:
        for step in range(steps + 1):
            if step == 1:  # what is compiled and loaded once has been
                watch.seconds.clear()
            keep_full(group)
            group.seen = seen
            with watch.time("intrinsic"):
                policy.reward(group, None)
            with watch.time("inference"):
                (output,) = policy.infer([group])
                group.settle(output)
            with watch.time("env"):
                seen = env.step(output.action)
    finally:
        env.close()
    return watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="ngu-montezuma")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the preset's")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    seconds = act(args.preset, args.overrides, args.rows, args.steps)
    whole = sum(map(sum, seconds.values()))
    parts = {
        name: {"share": round(sum(each) / whole, 3), "ms": spread([1e3 * value for value in each])}
        for name, each in seconds.items()
    }
    for name, numbers in parts.items():
        print(f"{name}: {json.dumps(numbers)}")
    if args.json:
        settings = {"preset": args.preset, "overrides": args.overrides, "rows": args.rows, "steps": args.steps}
        print(json.dumps({**describe("starling-rl", "torch", "ale-py"), "settings": settings, "parts": parts}))


if __name__ == "__main__":
    main()
