"""Share of an actor's time that NGU's intrinsic reward takes, with full episodic memories.

One actor as in a run (envs, policy, recorder) on one thread, with the networks and the env of a preset; its fragments
are discarded. Times are processor times of this process, so that other work on the machine hardly counts. The parts of
each step are timed, and shares are those of all steps together.

    python benchmarks/novelty_time.py [--preset ngu-montezuma] [--envs 16] [--steps 200] [--json] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from machine import describe, spread

from starling import tree
from starling.actor import noise
from starling.actor.core import EnvGroup, Policy
from starling.actor.env_loop import EnvLoop
from starling.actor.recorder import FragmentBuffer
from starling.config.load import load
from starling.envs.registry import make_env
from starling.envs.vector import VectorEnv
from starling.hardware import set_up_torch
from starling.launch.builders import build_policy
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.types import Fragment, Progress


class Stopwatch:
    """Processor seconds by name, one value per call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call so that its time is recorded."""

        def measured(*args: Any) -> Any:
            start = time.process_time()
            result = call(*args)
            self.seconds[name].append(time.process_time() - start)
            return result

        return measured


class DiscardFragments:
    """An experience sink that grants every credit and discards fragments."""

    def __init__(self, buffer: FragmentBuffer) -> None:
        self._buffer = buffer

    def begin(self, group: int) -> FragmentBuffer:
        return self._buffer

    def refresh(self) -> Progress:
        return Progress(updates=1)

    def insert(self, group: int, fragment: Fragment) -> None:
        """Discard the fragment."""


def fill(policy: Policy, group: EnvGroup, env: VectorEnv, actions: int) -> None:
    """Fill every episodic memory with embeddings of random play in all envs."""
    memory, rng = group.intrinsic_state["episode"], np.random.default_rng(0)
    entries, num_envs = memory["entries"], len(group.env_index)
    steps = -(-entries.shape[1] // num_envs)
    seen = env.reset(noise.seeds(1, group.env_index, 0))
    walk = []
    with torch.inference_mode():
        for _ in range(steps):
            walk.append(policy.model.embedding.encode(tree.to_torch(seen.obs, entries.device)))
            seen = env.step(rng.integers(0, actions, num_envs))
        entries.copy_(torch.stack(walk, 1).flatten(0, 1)[: entries.shape[1]])


def keep_full(group: EnvGroup) -> None:
    """Keep every memory full, although an episode end would clear it."""
    memory = group.intrinsic_state["episode"]
    memory["count"].clamp_(min=memory["entries"].shape[1])


def act(preset: str, overrides: list[str], num_envs: int, steps: int) -> dict[str, list[float]]:
    """Seconds of every step, by part."""
    run_plan = RunPlan.from_config(load(preset, [f"env.num={num_envs}", "actors=1", *overrides]))
    set_up_torch(1)
    model = build_model(run_plan)
    layout, spec = layout_of(run_plan, model), run_plan.groups()[0]
    sink = DiscardFragments(tree.zeros(run_plan.fragment_shape(layout).buffer(num_envs)))
    core, env = build_policy(run_plan, model, layout, sink, {0: spec}), make_env(run_plan.config.env, num_envs)
    assert isinstance(run_plan.env.action, spaces.Discrete), "what NGU needs"
    group: EnvGroup = core._groups[0]
    fill(core.policy, group, env, int(run_plan.env.action.n))
    loop, watch = EnvLoop(env, core, group=0, env_index=spec.env_index, seed=0), Stopwatch()
    parts = {"intrinsic": (core.policy, "compute_rewards"), "inference": (core.policy, "infer"), "env": (env, "step")}
    for name, (owner, method) in parts.items():
        setattr(owner, method, watch.timed(name, getattr(owner, method)))
    step = watch.timed("all", loop.step)
    try:
        for i in range(steps + 1):
            if i == 1:  # everything is compiled and loaded
                watch.seconds.clear()
            keep_full(group)
            step()
    finally:
        env.close()
    seconds = watch.seconds
    values = zip(*(seconds[name] for name in parts), strict=True)
    seconds["the rest"] = [total - sum(known) for total, known in zip(seconds.pop("all"), values, strict=True)]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="ngu-montezuma")
    parser.add_argument("--envs", type=int, default=16, help="number of envs")
    parser.add_argument("--steps", type=int, default=200, help="timed steps")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ from the preset's")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    seconds = act(args.preset, args.overrides, args.envs, args.steps)
    total = sum(map(sum, seconds.values()))
    parts = {
        name: {"share": round(sum(values) / total, 3), "ms": spread([1e3 * value for value in values])}
        for name, values in seconds.items()
    }
    for name, numbers in parts.items():
        print(f"{name}: {json.dumps(numbers)}")
    if args.json:
        settings = {"preset": args.preset, "overrides": args.overrides, "envs": args.envs, "steps": args.steps}
        print(json.dumps({**describe("starling-rl", "torch", "ale-py"), "settings": settings, "parts": parts}))


if __name__ == "__main__":
    main()
