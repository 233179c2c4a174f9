"""Learning curves of several variants over several seeds: train one run after another, then tabulate and plot them.

It can be interrupted at any time: every finished run is one line in the results file, and runs that are there are
skipped. The table and the plot show the finished runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from machine import describe
from results import Run, append_run, read_runs

import starling
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

HERE = Path(__file__).parent
GRID = 60


@dataclass(frozen=True)
class Study:
    """A comparison: for each variant a preset and its overrides."""

    name: str  # name of the files with results and plot
    title: str
    about: str  # the help text
    variants: dict[str, tuple[str, list[str]]]
    env_steps: int = 300_000
    seeds: int = 5


def train(study: Study, variant: str, seed: int, env_steps: int) -> Run:
    """One run: its curve of (env steps, mean return of the last 100 episodes)."""
    preset, overrides = study.variants[variant]
    settings = [*overrides, f"seed={seed}", f"stop={{env_steps: {env_steps}}}", f"log.every={env_steps // 100}"]
    settings += ["checkpoint.every=100000000", "checkpoint.replay=false"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as runs:
        rows = read_rows(RunFolder(starling.train(preset, settings, runs=runs).folder).metrics_file)
    curve = [(row["env_steps"], round(row["return"], 3)) for row in rows if row.get("return") is not None]
    run = {"variant": variant, "seed": seed, "env_steps": env_steps, "overrides": overrides}
    return run | {"seconds": round(time.monotonic() - start), "curve": curve}


def read(study: Study, results: Path, env_steps: int) -> list[Run]:
    """Finished runs of this length with the current settings of their variants."""
    return [
        run
        for run in read_runs(results)
        if run["variant"] in study.variants
        and run["env_steps"] == env_steps
        and run["overrides"] == study.variants[run["variant"]][1]
    ]


def on_grid(runs: list[Run], env_steps: int) -> tuple[Any, Any]:
    """Env steps [GRID] and the interpolated returns of all runs [runs, GRID]."""
    grid = np.linspace(0, env_steps, GRID)
    curves = [np.array(run["curve"]) for run in runs]  # [points, 2] each
    return grid, np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves])


def table(study: Study, runs: list[Run], env_steps: int) -> str:
    """Medians over seeds with extremes: of the mean over training, and of the last tenth."""
    lines = [
        "| variant | seeds | mean return over training | return at the end | minutes per run |",
        "|---|---|---|---|---|",
    ]
    for variant in study.variants:
        variant_runs = [run for run in runs if run["variant"] == variant]
        if not variant_runs:
            continue
        _, returns = on_grid(variant_runs, env_steps)
        cells = [_spread(returns.mean(1)), _spread(returns[:, -GRID // 10 :].mean(1))]
        minutes = np.median([run["seconds"] for run in variant_runs]) / 60
        lines.append(f"| {variant} | {len(variant_runs)} | {cells[0]} | {cells[1]} | {minutes:.1f} |")
    return "\n".join(lines)


def _spread(values: Any) -> str:
    return f"{np.median(values):.2f} ({values.min():.2f} to {values.max():.2f})"


def draw(study: Study, runs: list[Run], env_steps: int, out: Path) -> None:
    """Plot the median over seeds and the interquartile range."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for i, variant in enumerate(study.variants):
        variant_runs = [run for run in runs if run["variant"] == variant]
        if not variant_runs:
            continue
        grid, returns = on_grid(variant_runs, env_steps)
        low, middle, high = np.quantile(returns, [0.25, 0.5, 0.75], axis=0)
        axes.plot(grid, middle, color=f"C{i}", label=f"{variant} ({len(variant_runs)})")
        axes.fill_between(grid, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
    axes.set(xlabel="env steps", ylabel="return (mean of 100 episodes)")
    axes.set_title(f"{study.title}: median and interquartile range over seeds (number of seeds)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(out, dpi=120)
    plt.close(figure)


def main(study: Study) -> None:
    parser = argparse.ArgumentParser(description=study.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / f"{study.name}.jsonl", help="one line per finished run")
    parser.add_argument("--out", type=Path, default=Path(f"docs/images/{study.name.replace('_', '-')}.png"))
    parser.add_argument("--env-steps", type=int, default=study.env_steps)
    parser.add_argument("--seeds", type=int, default=study.seeds)
    parser.add_argument(
        "--only", choices=study.variants, action="append", help="train only this variant; may be repeated"
    )
    parser.add_argument("--draw-only", action="store_true", help="train nothing, only show finished runs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    args = parser.parse_args()
    done = {(run["variant"], run["seed"]) for run in read(study, args.results, args.env_steps)}
    wanted = [(variant, seed) for seed in range(args.seeds) for variant in args.only or study.variants]
    for variant, seed in [] if args.draw_only else wanted:
        if (variant, seed) in done:
            continue
        run = train(study, variant, seed, args.env_steps)
        append_run(args.results, run)
        print(f"{variant}, seed {seed}: {run['curve'][-1][1]} after {run['seconds']} s", flush=True)
    runs = read(study, args.results, args.env_steps)
    print(table(study, runs, args.env_steps))
    draw(study, runs, args.env_steps, args.out)
    if args.json:
        ends = {v: [r["curve"][-1][1] for r in runs if r["variant"] == v] for v in study.variants}
        settings = {"env_steps": args.env_steps, "seeds": args.seeds}
        print(json.dumps({**describe("starling-rl", "torch"), "settings": settings, "returns": ends}))
