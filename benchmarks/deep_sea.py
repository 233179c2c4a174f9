"""Deep sea in the protocol of bsuite (1908.03568): how many episodes each agent needs at each size.

An episode is good if it finds the treasure. A size is solved at the first episode, from the 100th on, at which at least
10% of all training episodes so far were good (bsuite: average regret below 0.9), and within 10,000 episodes. The agents
have the same settings at every size, except for those that equal the length of an episode. One run per core. It takes
hours, can be interrupted at any time, and continues with the same command; finished runs are in the results file.

    python benchmarks/deep_sea.py [--sizes 10,20,30,40,50] [--only ngu-deepsea] [--seed 0] [--jobs 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe
from run_queue import PACKAGES, REPOSITORY, commit_of

import starling
from starling.api import Quiet
from starling.envs.toy_explore import DeepSea
from starling.experiment.display import Status
from starling.tools.results.records import DEEP_SEA, DEEP_SEA_EPISODES, FILE, Result, append, read, thin

EPISODES = DEEP_SEA_EPISODES
MAPPING_SEED = 42  # bsuite's
FIRST = 100  # the first episode at which a size can be solved
GOOD = 0.1  # share of good episodes at which it is solved
CURVE_EVERY = 100  # episodes


def _sequences(size: int) -> list[str]:
    return [f"algo.{key}={size}" for key in ("unroll", "period", "fragment")]


def _novelty(size: int) -> list[str]:
    return [*_sequences(size), f"algo.predictor_steps={size}", f"algo.episodic.capacity={size}"]


AGENTS: dict[str, tuple[str, list[str], Callable[[int], list[str]]]] = {
    "NGU": ("ngu-deepsea", [], _novelty),
    "Agent57": ("agent57-deepsea", [], _novelty),
    "PPO+RND": ("ppo-rnd-deepsea", [], lambda size: []),
    "DQN+RND": ("dqn-rnd-deepsea", [], lambda size: []),
    "DQN, epsilon-greedy": ("dqn-rnd-deepsea", ["curiosity=[]"], lambda size: []),
}
"""Agent -> (preset, overrides, overrides for a size)."""


def overrides_for(agent: str, size: int) -> tuple[str, ...]:
    """All overrides of a run, without its seed."""
    _, overrides, lengths = AGENTS[agent]
    env = [f"env.args={{size: {size}, mapping_seed: {MAPPING_SEED}}}", f"stop.env_steps={EPISODES * size}"]
    return (*overrides, *env, *lengths(size))


class Tally:
    """Counts the episodes of all envs of a run, and those that were good."""

    def __init__(self) -> None:
        self.episodes = self.good = self.env_steps = 0
        self.solved_at: int | None = None
        self.curve: list[tuple[int, float]] = []  # (env steps, share of good episodes)

    def add(self, good: bool, steps: int) -> None:
        if self.ended:
            return
        self.episodes, self.good, self.env_steps = self.episodes + 1, self.good + good, self.env_steps + steps
        if self.episodes % CURVE_EVERY == 0:
            self.curve.append((self.env_steps, round(self.good / self.episodes, 4)))
        if self.episodes >= FIRST and self.good >= GOOD * self.episodes:
            self.solved_at = self.episodes

    @property
    def ended(self) -> bool:
        return self.solved_at is not None or self.episodes >= EPISODES


class CountedDeepSea(DeepSea):
    """Deep sea that reports every episode to a tally."""

    def __init__(self, tally: Tally, **args: Any) -> None:
        super().__init__(**args)
        self._tally = tally

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if result[2]:
            self._tally.add(result[4]["treasure"], self._size)
        return result


class StopWhenEnded(Quiet):
    """Ends the run as Ctrl-C does once the tally has ended."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._sent = tally, False

    def tick(self, status: Status) -> None:
        if self._tally.ended and not self._sent:
            self._sent = True
            os.kill(os.getpid(), signal.SIGINT)


def train(agent: str, size: int, seed: int) -> Result:
    """One run in this process."""
    tally = Tally()
    starling.register_env("counted-deep-sea", lambda **args: CountedDeepSea(tally, **args))
    preset, overrides = AGENTS[agent][0], overrides_for(agent, size)
    started = time.monotonic()
    settings = [*overrides, f"seed={seed}", "env.id=counted-deep-sea", "threads=1", "eval.every=null"]
    settings += ["checkpoint.every=1000000000", "checkpoint.replay=false"]
    with tempfile.TemporaryDirectory() as runs:
        result = starling.train(preset, settings, runs=runs, display=StopWhenEnded(tally))
    if not tally.ended and result.signal is not None:
        raise KeyboardInterrupt
    here = describe(*PACKAGES)
    return Result(
        preset=preset,
        overrides=overrides,
        seed=seed,
        env_steps=tally.env_steps,
        minutes=round((time.monotonic() - started) / 60, 3),
        score=float(tally.solved_at or EPISODES),
        protocol=DEEP_SEA,
        versions={name: version for name, version in here["versions"].items() if version is not None},
        machine=here["machine"],
        commit=commit_of(REPOSITORY),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        curve=thin(tally.curve),
        note=f"{tally.good} good episodes of {tally.episodes}, one thread",
    )


def _run_apart(agent: str, size: int, seed: int, results: Path) -> str:
    """One run in a process of its own, which records it; returns a line about it."""
    command = [sys.executable, __file__, "--worker", agent, str(size), str(seed), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    return f"{agent}, size {size}: {''.join(last)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,20,30,40,50", help="sizes, separated by commas")
    parser.add_argument("--only", choices=AGENTS, action="append", help="run only this agent; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at once (one per core)")
    parser.add_argument("--results", type=Path, default=FILE, help="results file (the one that Starling comes with)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--worker", nargs=3, metavar=("AGENT", "SIZE", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        agent, size, seed = args.worker[0], int(args.worker[1]), int(args.worker[2])
        result = train(agent, size, seed)
        append(result, args.results)
        print(f"{result.note}; score {result.score:.0f}; {result.minutes} minutes")
        return 0
    done = {result.job for result in read(args.results)}
    sizes = [int(size) for size in args.sizes.split(",")]
    wanted = [(agent, size) for size in sizes for agent in args.only or AGENTS]
    jobs = [job for job in wanted if (AGENTS[job[0]][0], overrides_for(*job), args.seed) not in done]
    with ThreadPoolExecutor(args.jobs) as pool:
        for line in pool.map(lambda job: _run_apart(job[0], job[1], args.seed, args.results), jobs):
            print(line, flush=True)
    scores = {result.job: result.score for result in read(args.results)}
    table = {
        agent: {size: scores.get((AGENTS[agent][0], overrides_for(agent, size), args.seed)) for size in sizes}
        for agent in args.only or AGENTS
    }
    for agent, by_size in table.items():
        solved = sum(score is not None and score < EPISODES for score in by_size.values())
        print(f"{agent}: {solved} of {len(sizes)} solved; episodes by size: {by_size}")
    if args.json:
        settings = {"sizes": sizes, "seed": args.seed, "episodes": EPISODES, "mapping_seed": MAPPING_SEED}
        print(json.dumps({**describe(*PACKAGES), "settings": settings, "episodes_until_solved": table}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
