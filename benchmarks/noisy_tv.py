"""Curiosity and unpredictable noise: PPO in rooms, the first of which has a TV that shows noise.

ICM predicts features that an inverse model shapes; "raw error" predicts the observation itself; "none" has only the
env's reward. Each is also trained without the TV, to show that nothing else makes the difference. Reported: the share
of episodes that find the goal, and how many rooms the final policy visits. Every finished run is one line of `--out`
and is skipped later.

    python benchmarks/noisy_tv.py [--seeds 3] [--env-steps 200000] [--out noisy_tv.jsonl] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean

from machine import describe, spread
from results import Run, append_run, is_finished, read_runs

import starling
from starling.actor.evaluator import play_episodes
from starling.envs.registry import make_env
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.tools.evaluate import load_agent

PRESET = "ppo-icm-rooms"
VARIANTS: dict[str, list[str]] = {
    "icm": [],
    "raw error": ["curiosity.0.torso.hidden=[]"],
    "none": ["curiosity=[]"],
}
EPISODES = 32


def train(variant: str, tv: int, seed: int, rooms: int, limit: int, env_steps: int) -> Run:
    """One run: how often it found the goal during training, and the rooms that it visits at the end."""
    settings = [*VARIANTS[variant], f"env.args={{rooms: {rooms}, limit: {limit}, tv: {tv}}}", f"seed={seed}"]
    settings += [f"stop={{env_steps: {env_steps}}}", f"log.every={env_steps // 50}", f"checkpoint.every={env_steps}"]
    with tempfile.TemporaryDirectory(prefix="noisy-tv-") as runs:
        folder = starling.train(PRESET, settings, runs=runs).folder
        curve = [(row["env_steps"], row["return"]) for row in read_rows(RunFolder(folder).metrics_file)]
        seen = rooms_seen(folder)
    known_returns = [(step, value) for step, value in curve if value is not None]
    found = next((step for step, value in known_returns if value >= 0.5), None)
    return {"rooms_seen": seen, "found": known_returns[-1][1], "steps_to_half": found, "curve": known_returns}


def rooms_seen(run: Path) -> float:
    """Visited rooms per episode, a mean over episodes played with exploration as in training."""
    agent = load_agent(run, which="newest", protocol="as-trained", warn=print)
    env = make_env(agent.run_plan.config.env, 8)
    policy = agent.policy(explore=True)
    try:
        played = play_episodes(policy, env, episodes=EPISODES, seed=1_000, reward_clip=None)
        games = [game for ended in played for game in ended]
    finally:
        env.close()
    return fmean(float(game.info["rooms"]) for game in games)


def summary(runs: list[Run], job: Run) -> dict[str, Run]:
    """Median and extremes over seeds of every variant, with and without the TV."""
    report: dict[str, Run] = {}
    for tv in (job["tv"], 0):
        for variant in VARIANTS:
            wanted = {**job, "variant": variant, "tv": tv}
            matching = [run for run in runs if wanted.items() <= run.items()]
            if matching:
                report[f"{variant}, tv {tv}"] = {
                    "found": spread([run["found"] for run in matching]),
                    "rooms_seen": spread([run["rooms_seen"] for run in matching]),
                    "steps_to_half": [run["steps_to_half"] for run in matching],
                    "seeds": len(matching),
                }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("noisy_tv.jsonl"), help="file with one line per finished run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=200_000)
    parser.add_argument("--rooms", type=int, default=4)
    parser.add_argument("--limit", type=int, default=200, help="maximal steps per episode")
    parser.add_argument("--tv", type=int, default=16, help="number of noise values that the TV shows")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    settings: Run = {name: getattr(args, name) for name in ("rooms", "limit", "env_steps")}
    for seed in range(args.seeds):
        for tv in (args.tv, 0):
            for variant in VARIANTS:
                job = {"variant": variant, "tv": tv, "seed": seed, **settings}
                if not is_finished(args.out, job):
                    run = {**job, **train(**job)}
                    append_run(args.out, run)
                    print(f"{variant}, tv {tv}, seed {seed}: {run['found']:.2f}, {run['rooms_seen']:.1f}", flush=True)
    report = summary(read_runs(args.out), {"tv": args.tv, **settings})
    for name, numbers in report.items():
        print(f"{name}: {json.dumps(numbers)}")
    if args.json:
        print(
            json.dumps({**describe("starling-rl", "torch"), "settings": {"tv": args.tv, **settings}, "results": report})
        )


if __name__ == "__main__":
    main()
