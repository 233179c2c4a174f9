"""Forgetting of a first task while a second is learned: IMPALA, with replay, and with CLEAR's cloning in addition.

The share of right answers is exact: the policy's probabilities, over all symbols.

    python benchmarks/continual.py [--seeds 5] [--period 1000] [--json]
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

import numpy as np
import torch
from alternating import SYMBOLS, answer, observation
from machine import describe, spread

from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

NUM_ENVS = 8
SETTINGS = [
    *["net.torso.hidden=[32]", "net.shared=true", "stop.return=null", "algo.unroll=16", "algo.discount=0.5"],
    *["algo.entropy_coef=0.2", "algo.optimizer={name: Adam, args: {lr: 0.005}, clip_norm: 1000}"],
]
REPLAY = [
    "algo.batch=8",
    "algo.sources=[{kind: queue, share: 0.5}, {kind: uniform, share: 0.5, capacity: 4000}]",
]
ARMS = {
    "new unrolls alone": ["algo.batch=4"],
    "half replayed": REPLAY,
    "half replayed and cloned": [*REPLAY, "algo.clear={policy_cost: 1.0, value_cost: 0.5}"],
}
Shares = list[tuple[float, float]]


def share_of_right_answers(model: Any, task: int) -> float:
    """The probability of the right answer, averaged over all symbols."""
    obs = torch.from_numpy(np.stack([observation(symbol, task) for symbol in range(SYMBOLS)]))
    outputs, _ = model.step(obs, torch.ones(SYMBOLS, dtype=torch.bool), {})
    right = torch.tensor([answer(symbol, task) for symbol in range(SYMBOLS)])
    return float(outputs["policy"].log_prob(right).exp().mean())


def train(arm: str, seed: int, period: int) -> Shares:
    """The shares of right answers to both tasks, after the first and after the second was trained."""
    env = f"env={{id: alternating:Alternating, num: {NUM_ENVS}, args: {{period: {period}}}}}"
    runtime = build_runtime(RunPlan.from_config(load("impala-cartpole", [env, *SETTINGS, *ARMS[arm], f"seed={seed}"])))
    steps = runtime.run()
    shares: Shares = []
    for phase in (1, 2):
        while runtime.env_steps < phase * period * NUM_ENVS:
            next(steps)
        with torch.no_grad():
            shares.append(
                (share_of_right_answers(runtime.learner.model, 0), share_of_right_answers(runtime.learner.model, 1))
            )
    runtime.close()
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--period", type=int, default=1000, help="steps of each env per task")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    set_up_torch(1)
    results = {arm: [train(arm, seed, args.period) for seed in range(args.seeds)] for arm in ARMS}
    for arm, runs in results.items():
        first, kept, second = (median(run[phase][task] for run in runs) for phase, task in ((0, 0), (1, 0), (1, 1)))
        print(f"{arm}: the first task {first:.2f}, after the second {kept:.2f}; the second {second:.2f}")
    forgotten = {arm: [run[0][0] - run[1][0] for run in runs] for arm, runs in results.items()}
    cloned = forgotten["half replayed and cloned"]
    margins = {arm: [a - b for a, b in zip(forgotten[arm], cloned, strict=True)] for arm in list(ARMS)[:2]}
    for arm, values in margins.items():
        print(f"cloning forgets {median(values):.2f} less than {arm} ({min(values):.2f} to {max(values):.2f})")
    if args.json:
        report: dict[str, Any] = {
            "settings": vars(args),
            "runs": results,
            "margins": {arm: spread(values) for arm, values in margins.items()},
        }
        print(json.dumps({**describe("starling-rl", "torch"), **report}))


if __name__ == "__main__":
    main()
