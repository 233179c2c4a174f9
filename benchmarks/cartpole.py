"""Env steps per second on CartPole, inline, compared with Stable-Baselines3 with the same settings and network sizes.

Both run in turns in one process with one torch thread; the result is the ratio. Construction is not timed.

    make bench-install && .venv-bench/bin/python benchmarks/cartpole.py --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import describe, spread

from starling.config.load import load
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan, plan_threads
from starling.launch.runtime import build_runtime

STEPS = {"ppo": 25_600, "dqn": 12_800}
SETTINGS = {
    "ppo": ["env.num=8", "algo.epochs=20", "algo.minibatches=1", "algo.optimizer.args.lr=0.001"],
    "dqn": ["algo.double=false", "algo.n_step=1", "algo.optimizer.schedule=null"],
}
"""Overrides that give a preset the peer's settings, which are from its collection of tuned hyperparameters."""


def ours(algorithm: str, steps: int, seed: int) -> float:
    """Env steps per second of a preset with the peer's settings."""
    settings = [*SETTINGS[algorithm], f"seed={seed}", f"stop.env_steps={steps}", "stop.return=null"]
    config = load(f"{algorithm}-cartpole", settings)
    run_plan = RunPlan.from_config(config)
    set_up_torch(plan_threads(run_plan))
    runtime = build_runtime(run_plan)
    start = time.perf_counter()
    for _ in runtime.run():
        if runtime.env_steps >= steps:
            break
    return runtime.env_steps / (time.perf_counter() - start)


def sb3_ppo(steps: int, seed: int) -> float:
    """Stable-Baselines3 with its tuned settings for PPO on CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20, gamma=0.98,
        gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left,
        seed=seed, device="cpu",
    )  # fmt: skip
    return _timed(lambda: model.learn(steps), steps)


def sb3_dqn(steps: int, seed: int) -> float:
    """Stable-Baselines3 with its tuned settings for DQN on CartPole."""
    import gymnasium
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy", gymnasium.make("CartPole-v1"), learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
        learning_starts=1000, gamma=0.99, target_update_interval=256, train_freq=256, gradient_steps=128,
        exploration_fraction=0.16, exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, seed=seed,
        device="cpu",
    )  # fmt: skip
    return _timed(lambda: model.learn(steps), steps)


def _timed(work: Callable[[], Any], steps: int) -> float:
    torch.set_flush_denormal(False)  # torch's default, which Starling changes for its own process
    start = time.perf_counter()
    work()
    return steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="pairs of measurements per algorithm")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peers = {"ppo": sb3_ppo, "dqn": sb3_dqn}
    report: dict[str, Any] = describe("starling-rl", "stable-baselines3", "torch", "gymnasium", "numpy")
    report["settings"] = {"env_steps": STEPS, "torch_threads": 1, "repetitions": arguments.repetitions}
    for algorithm, peer in peers.items():
        pairs = []
        for seed in range(arguments.repetitions):
            mine, theirs = ours(algorithm, STEPS[algorithm], seed), peer(STEPS[algorithm], seed)
            pairs.append((mine, theirs))
            print(
                f"{algorithm}: starling {mine:,.0f} steps/s, stable-baselines3 {theirs:,.0f}, ratio {mine / theirs:.2f}"
            )
        report[algorithm] = {
            "steps_per_s": spread([mine for mine, _ in pairs]),
            "peer_steps_per_s": spread([theirs for _, theirs in pairs]),
            "ratio": spread([mine / theirs for mine, theirs in pairs]),
        }
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
