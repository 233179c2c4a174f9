"""Learning curves on a recall task: R2D2, R2D2 from zero states, and DQN, in one plot.

A cue is shown in the first step of an episode and asked for 21 steps later; without memory the mean return is 0.
Sequences are shorter than that, so only the stored recurrent state connects cue and question.

    python benchmarks/memory.py [--out docs/images/r2d2-memory.png] [--env-steps 40000] [--seeds 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from machine import describe

import starling
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

DQN = [
    "env={id: toy/memory, num: 16, args: {delay: 20}}",
    *["algo.double=true", "algo.learning_starts=1000", "algo.fragment=11", "algo.updates_per_step=0.05"],
    *["algo.batch=128", "algo.target_every=50", "algo.optimizer.args.lr=0.003", "net.torso.hidden=[32, 32]"],
]
CONTESTANTS: dict[str, tuple[str, list[str]]] = {
    "R2D2, stored states": ("r2d2-memory", []),
    "R2D2, zero states": ("r2d2-memory", ["algo.state=zero"]),
    "DQN, no memory": ("dqn-cartpole", DQN),
}
Curve = list[tuple[int, float]]


def curve(preset: str, overrides: list[str], seed: int, env_steps: int) -> Curve:
    """Env steps and the mean return of the last 100 episodes of one run."""
    settings = [*overrides, f"seed={seed}", f"stop={{env_steps: {env_steps}}}", "log.every=1000"]
    with tempfile.TemporaryDirectory() as runs:
        result = starling.train(preset, settings, runs=runs)
        rows = read_rows(RunFolder(result.folder).metrics_file)
    return [(row["env_steps"], row["return"]) for row in rows if row.get("return") is not None]


def draw(curves: dict[str, list[Curve]], out: Path) -> None:
    """Plot one line per run and one color per contestant."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, (name, runs) in enumerate(curves.items()):
        for k, run in enumerate(runs):
            axes.plot(*zip(*run, strict=True), color=f"C{i}", label=name if k == 0 else None)
    axes.set(xlabel="env steps", ylabel="return (mean of 100 episodes)", ylim=(-0.5, 1.05))
    axes.set_title("recall after a delay of 20; sequences of 20 steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/r2d2-memory.png"))
    parser.add_argument("--env-steps", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the last returns as JSON on the last line")
    args = parser.parse_args()
    curves: dict[str, list[Curve]] = {}
    for name, (preset, overrides) in CONTESTANTS.items():
        curves[name] = [curve(preset, overrides, seed, args.env_steps) for seed in range(args.seeds)]
        print(f"{name}: {[round(run[-1][1], 2) for run in curves[name]]}", flush=True)
    draw(curves, args.out)
    if args.json:
        report: dict[str, Any] = {"settings": {"env_steps": args.env_steps, "seeds": args.seeds}, "curves": curves}
        print(json.dumps({**describe("starling-rl", "torch"), **report}))


if __name__ == "__main__":
    main()
