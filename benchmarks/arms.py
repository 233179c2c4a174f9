"""Plots the results of an NGU run's policies in the evaluator's trials: mean returns and shares, over env steps.

python benchmarks/arms.py RUN [--out arms.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

PREFIX = "eval/arm/"


def read(rows: list[dict[str, Any]], what: str) -> tuple[Any, Any]:
    """Env steps [n] and the values of every policy [N, n]; NaN before its first trial."""
    known = [row for row in rows if any(key.startswith(PREFIX) for key in row)]
    arms = 1 + max((int(key.split("/")[2]) for row in known for key in row if key.startswith(PREFIX)), default=-1)
    values = [[row.get(f"{PREFIX}{arm}/{what}", np.nan) for row in known] for arm in range(arms)]
    return np.array([row["env_steps"] for row in known]), np.array(values)


def draw(rows: list[dict[str, Any]], title: str, out: Path) -> None:
    """Plot means above and shares below, with one color per policy, from the most exploiting to the most exploring."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    steps, means = read(rows, "return")
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(means)))
    for arm, mean in enumerate(means):
        above.plot(steps, mean, color=colors[arm], label=str(arm))
    shares = np.nan_to_num(read(rows, "share")[1])
    below.stackplot(steps, shares / shares.sum(0), colors=colors)
    above.set(ylabel="mean return", title=title)
    above.legend(title="arm", ncols=2, fontsize="small")
    above.grid(alpha=0.3)
    below.set(xlabel="env steps", ylabel="share of trials", ylim=(0, 1))
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--out", type=Path, default=Path("arms.png"))
    args = parser.parse_args()
    rows = read_rows(RunFolder(args.run).metrics_file)
    if not any(key.startswith(PREFIX) for row in rows for key in row):
        parser.error(f"{args.run} has no metrics of arms: it is not an NGU run with algo.meta, or it had no evaluation")
    draw(rows, args.run.name, args.out)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
