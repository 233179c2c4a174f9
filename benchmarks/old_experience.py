"""What old experience is worth: returns on MinAtar Breakout with every way to mix it in, five seeds each.

Hours of work that can be interrupted at any time: every finished run is a line of the results file, and what is there
already is not run again. A table and a plot are made of what there is.

    python benchmarks/old_experience.py [--seeds 5] [--env-steps 300000] [--only "elite 0.5"] [--draw-only]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from results import Run, known, note

import starling
from starling.runs.folder import RunFolder
from starling.runs.metrics import read_rows

HERE = Path(__file__).parent
UNIFORM = "algo.sources=[{kind: queue, share: 0.5}, {kind: uniform, share: 0.5, capacity: 1000}]"
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "queue only": ("impala-minatar-breakout", []),
    "uniform 0.5": ("impala-minatar-breakout", ["algo.batch=16", UNIFORM]),
    "attentive 0.5": ("impala-attentive-minatar-breakout", []),
    "elite 0.5": ("impala-elite-minatar-breakout", []),
    "CLEAR": ("impala-clear-minatar-breakout", []),
    "LASER 7/8": ("impala-laser-minatar-breakout", []),
    "IMPACT": ("impact-minatar-breakout", []),
}
"""All take 8 new unrolls of 20 steps an update, so all have as many updates an env step, but for IMPACT's reuse."""
GRID = 60


def train(variant: str, seed: int, env_steps: int) -> Run:
    """One run: its curve, env steps and the mean return of the last 100 episodes."""
    preset, overrides = VARIANTS[variant]
    settings = [*overrides, f"seed={seed}", f"stop={{env_steps: {env_steps}}}", f"log.every={env_steps // 100}"]
    settings += ["checkpoint.every=100000000", "checkpoint.replay=false"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as runs:
        rows = read_rows(RunFolder(starling.train(preset, settings, runs=runs).folder).metrics_file)
    curve = [(row["env_steps"], round(row["return"], 3)) for row in rows if row.get("return") is not None]
    run = {"variant": variant, "seed": seed, "env_steps": env_steps, "overrides": overrides}
    return run | {"seconds": round(time.monotonic() - start), "curve": curve}


def read(results: Path, env_steps: int) -> list[Run]:
    """Finished runs of this length, of variants as they are now."""
    return [
        run
        for run in known(results)
        if run["variant"] in VARIANTS
        and run["env_steps"] == env_steps
        and run["overrides"] == VARIANTS[run["variant"]][1]
    ]


def on_grid(runs: list[Run], env_steps: int) -> tuple[Any, Any]:
    """Env steps [GRID] and what all runs return there [runs, GRID]; until its first episodes end, as those."""
    grid = np.linspace(0, env_steps, GRID)
    curves = [np.array(run["curve"]) for run in runs]  # [points, 2] each
    return grid, np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves])


def table(runs: list[Run], env_steps: int) -> str:
    """Medians over seeds, with the extremes: of the mean over training, and of the last tenth."""
    lines = [
        "| variant | seeds | mean return over training | return at the end | minutes a run |",
        "|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        mine = [run for run in runs if run["variant"] == variant]
        if not mine:
            continue
        _, returns = on_grid(mine, env_steps)
        cells = [_spread(returns.mean(1)), _spread(returns[:, -GRID // 10 :].mean(1))]
        minutes = np.median([run["seconds"] for run in mine]) / 60
        lines.append(f"| {variant} | {len(mine)} | {cells[0]} | {cells[1]} | {minutes:.1f} |")
    return "\n".join(lines)


def _spread(values: Any) -> str:
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def draw(runs: list[Run], env_steps: int, out: Path) -> None:
    """The median over seeds, and between which values the middle half of them lies."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for i, variant in enumerate(VARIANTS):
        mine = [run for run in runs if run["variant"] == variant]
        if not mine:
            continue
        grid, returns = on_grid(mine, env_steps)
        low, middle, high = np.quantile(returns, [0.25, 0.5, 0.75], axis=0)
        axes.plot(grid, middle, color=f"C{i}", label=f"{variant} ({len(mine)})")
        axes.fill_between(grid, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
    axes.set(xlabel="env steps", ylabel="return (mean of 100 episodes)")
    axes.set_title("MinAtar Breakout: median and middle half of the seeds (how many)")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "old_experience.jsonl")
    parser.add_argument("--out", type=Path, default=Path("docs/images/old-experience.png"))
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=VARIANTS, action="append", help="these variants alone")
    parser.add_argument("--draw-only", action="store_true", help="run nothing, show what there is")
    args = parser.parse_args()
    done = {(run["variant"], run["seed"]) for run in read(args.results, args.env_steps)}
    wanted = [(variant, seed) for seed in range(args.seeds) for variant in args.only or VARIANTS]
    for variant, seed in [] if args.draw_only else wanted:
        if (variant, seed) in done:
            continue
        run = train(variant, seed, args.env_steps)
        note(args.results, run)
        print(f"{variant}, seed {seed}: {run['curve'][-1][1]} after {run['seconds']} s", flush=True)
    runs = read(args.results, args.env_steps)
    print(table(runs, args.env_steps))
    draw(runs, args.env_steps, args.out)


if __name__ == "__main__":
    main()
