"""Time from process start to a mean return of 475 over 100 episodes on CartPole, compared with Stable-Baselines3.

Each run is a separate process with the default number of threads; both take turns, and the peer has its tuned settings.

    make bench-install && .venv-bench/bin/python benchmarks/solve.py --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from statistics import median

from machine import describe, spread

GOAL = 475


def peer(seed: int) -> None:
    """Train Stable-Baselines3's PPO until it has solved CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class UntilSolved(BaseCallback):  # type: ignore[misc, unused-ignore]
        def _on_step(self) -> bool:
            episodes = self.model.ep_info_buffer
            return len(episodes) < 100 or sum(episode["r"] for episode in episodes) / 100 < GOAL

    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20, gamma=0.98,
        gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left,
        seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(100_000, callback=UntilSolved())
    print(sum(episode["r"] for episode in model.ep_info_buffer) / 100)


def timed(command: list[str]) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer", type=int, metavar="SEED", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    arguments = parser.parse_args()
    if arguments.peer is not None:
        peer(arguments.peer)
        return
    mine, theirs = [], []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as runs:
            seconds, said = timed(["-m", "starling", "train", "ppo-cartpole", f"seed={seed}", "--runs", runs])
        peer_seconds, score = timed([__file__, "--peer", str(seed)])
        mine.append(seconds)
        theirs.append(peer_seconds)
        solved = f"reached stop.return={GOAL}" in said
        print(f"seed {seed}: starling {seconds:.1f} s (solved: {solved})", end="")
        print(f", stable-baselines3 {peer_seconds:.1f} s (score {float(score):.0f})", flush=True)
    ratio = round(median(mine) / median(theirs), 3)
    print(f"median {median(mine):.1f} s against {median(theirs):.1f} s: {ratio}")
    if arguments.json:
        report = describe("starling-rl", "stable-baselines3", "torch")
        report |= {"settings": {"goal": GOAL, "seeds": arguments.seeds}, "ratio": ratio}
        print(json.dumps(report | {"seconds": spread(mine), "peer_seconds": spread(theirs)}))


if __name__ == "__main__":
    main()
