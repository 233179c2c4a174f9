"""Seconds from process start to a mean return over 100 episodes, by runtime, to choose a preset's default.

Every run is a separate process; runtimes take turns.

    python benchmarks/to_goal.py impala-minatar-breakout --goal 5 [--seeds 2] [--json] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import describe, spread

from starling.experiment.run_folder.metrics import read_rows

RUNTIMES = {
    "inline": ["runtime=inline"],
    "processes": ["runtime=processes"],
    "processes, central": ["runtime=processes", "inference=central"],
}


def run(preset: str, settings: list[str], goal: float) -> dict[str, Any]:
    """One run: its time, env steps, and final return."""
    with tempfile.TemporaryDirectory(prefix="to-goal-") as runs:
        run_settings = [f"stop.return={goal}", "run=a", "checkpoint.every=100000000", *settings]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "starling", "train", preset, *run_settings, "--runs", runs],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        last = read_rows(Path(runs) / "a" / "metrics.jsonl")[-1]
    return {"seconds": round(seconds, 1), "env_steps": last["env_steps"], "return": last["return"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--goal", type=float, required=True, help="mean return over 100 episodes")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=["inline", "processes"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in args.runtimes}
    for seed in range(args.seeds):
        for name in args.runtimes:
            found[name].append(run(args.preset, [*RUNTIMES[name], *args.settings, f"seed={seed}"], args.goal))
            print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
    if args.json:
        settings = {"preset": args.preset, "goal": args.goal, "settings": args.settings}
        seconds = {name: spread([one["seconds"] for one in runs]) for name, runs in found.items()}
        said = describe("starling-rl", "torch")
        print(json.dumps({**said, "settings": settings, "seconds": seconds, "runs": found}))


if __name__ == "__main__":
    main()
