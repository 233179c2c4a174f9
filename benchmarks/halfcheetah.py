"""SAC and PPO on HalfCheetah at equal env steps, compared with Stable-Baselines3 with its own tuned settings.

Every run is a separate process, Starling and the peer in turns: it trains for `--steps` env steps, reports the time
from the start of training (without evaluation), and plays 10 episodes without exploration. Its result is one line of
`--out`; finished runs are skipped, so the benchmark can be interrupted and continued. It takes hours. A line with
`"disturbed": true` (added by hand: other work ran beside it, or it was paused) counts only for returns. Starling's runs
are kept beside `--out`: `starling play RUN --video cheetah.mp4`.

    make bench-install && .venv-bench/bin/python benchmarks/halfcheetah.py --out halfcheetah.jsonl --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe, spread
from results import append_run, is_finished, read_runs

ENV = "HalfCheetah-v5"
EPISODES = 10
ALGORITHMS = ("sac", "ppo")
CONTESTANTS = ("starling", "stable-baselines3")


def starling(algorithm: str, seed: int, steps: int, runs: Path) -> dict[str, Any]:
    """Train Starling's preset."""
    from starling import api
    from starling.tools.evaluate import evaluate_run

    settings = [
        f"seed={seed}",
        f"stop.env_steps={steps}",
        "eval.every=null",
        f"checkpoint.every={steps}",
    ]
    start = time.perf_counter()
    done = api.train(f"{algorithm}-halfcheetah", settings, runs=runs)
    seconds = time.perf_counter() - start
    played = evaluate_run(done.folder, episodes=EPISODES, seed=1_000, which="newest", protocol="as-trained", warn=print)
    return {"seconds": seconds, "return": played["mean"], "training_return": done.score}


def stable_baselines3(algorithm: str, seed: int, steps: int) -> dict[str, Any]:
    """Train the peer with the settings of its own collection of tuned hyperparameters."""
    from stable_baselines3.common.evaluation import evaluate_policy

    env = peer_env(algorithm, seed, gamma=0.98)
    other = peer_env(algorithm, 1_000, training=False, norm_reward=False)
    model = peer(algorithm, env, seed)
    start = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - start
    training = [episode["r"] for episode in model.ep_info_buffer]
    if algorithm == "ppo":
        other.obs_rms = env.obs_rms
    mean, _ = evaluate_policy(model, other, n_eval_episodes=EPISODES, deterministic=True)
    return {"seconds": seconds, "return": float(mean), "training_return": float(np.mean(training))}


def peer_env(algorithm: str, seed: int, **normalize_args: Any) -> Any:
    """The peer's env; PPO's normalizes observations and rewards."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = make_vec_env(ENV, 1, seed=seed)
    return VecNormalize(env, **normalize_args) if algorithm == "ppo" else env


def peer(algorithm: str, env: Any, seed: int) -> Any:
    from stable_baselines3 import PPO, SAC
    from torch import nn

    if algorithm == "sac":
        return SAC("MlpPolicy", env, learning_starts=10_000, seed=seed, device="cpu")
    return PPO(
        "MlpPolicy", env, batch_size=64, n_steps=512, gamma=0.98, learning_rate=2.0633e-05, ent_coef=0.000401762,
        clip_range=0.1, n_epochs=20, gae_lambda=0.92, max_grad_norm=0.8, vf_coef=0.58096, seed=seed, device="cpu",
        policy_kwargs={
            "log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    )  # fmt: skip


def run_one(algorithm: str, contestant: str, seed: int, steps: int, runs: Path) -> None:
    """Train and print the result as the last line."""
    before = time.perf_counter()
    if contestant == "starling":
        found = starling(algorithm, seed, steps, runs)
    else:
        found = stable_baselines3(algorithm, seed, steps)
    print(json.dumps({**found, "process_seconds": time.perf_counter() - before}))


def run_all(out: Path, seeds: int, steps: int, only: str | None) -> None:
    """Do every run that `out` does not have yet."""
    for seed in range(seeds):
        for algorithm in (only,) if only else ALGORITHMS:
            for contestant in CONTESTANTS:
                job = {"algorithm": algorithm, "contestant": contestant, "seed": seed, "steps": steps}
                if is_finished(out, job):
                    continue
                command = [sys.executable, __file__, "--out", str(out), "--one", json.dumps(job)]
                said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                row = {**job, **json.loads(said.splitlines()[-1])}
                append_run(out, row)
                print(
                    f"{algorithm} seed {seed}: {contestant} {row['return']:.0f} in {row['seconds']:.0f} s", flush=True
                )


def interval(values: list[float]) -> list[float]:
    """The bootstrapped 95% confidence interval of the mean."""
    draws = np.random.default_rng(0).choice(values, size=(2000, len(values))).mean(axis=1)
    return [round(float(bound), 1) for bound in np.quantile(draws, [0.025, 0.975])]


def summary(rows: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Returns and seconds of each contestant, and the ratio of Starling's time to the peer's."""
    report: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        each: dict[str, list[dict[str, Any]]] = {
            name: [r for r in rows if (r["algorithm"], r["contestant"], r["steps"]) == (algorithm, name, steps)]
            for name in CONTESTANTS
        }
        if not all(each.values()):
            continue
        report[algorithm] = {
            name: {
                "return": round(float(np.mean([row["return"] for row in found])), 1),
                "ci95": interval([row["return"] for row in found]),
                "seconds": spread(_seconds(found)) if _seconds(found) else None,
                "seeds": len(found),
            }
            for name, found in each.items()
        }
        mine, peer = (_seconds(each[name]) for name in CONTESTANTS)
        report[algorithm]["seconds_ratio"] = round(float(np.mean(mine) / np.mean(peer)), 3) if mine and peer else None
    return report


def _seconds(rows: list[dict[str, Any]]) -> list[float]:
    return [row["seconds"] for row in rows if not row.get("disturbed")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("halfcheetah.jsonl"), help="file with one line per finished run"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--only", choices=ALGORITHMS, help="one algorithm")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        job = json.loads(args.one)
        run_one(**job, runs=args.out.with_suffix(""))
        return
    run_all(args.out, args.seeds, args.steps, args.only)
    report = summary(read_runs(args.out), args.steps)
    for algorithm, found in report.items():
        print(f"{algorithm}: {json.dumps(found)}")
    if args.json:
        said = describe("starling-rl", "stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
        print(json.dumps({**said, "settings": {"env": ENV, "steps": args.steps}, "results": report}))


if __name__ == "__main__":
    main()
