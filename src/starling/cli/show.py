"""How rows and results look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starling.training import Result


def progress_line(row: dict[str, Any]) -> str:
    """One row of metrics as one short line."""
    score = "-" if row["return"] is None else f"{row['return']:.1f}"
    losses = "  ".join(
        f"{key.removeprefix('loss/')} {value:.3g}" for key, value in row.items() if key.startswith("loss/")
    )
    speed = f"{row['time/steps_per_s']:,.0f} steps/s"
    return f"step {row['env_steps']:>9,}  update {row['updates']:>7,}  return {score:>7}  {speed:>14}  {losses}"


def closing_lines(result: Result) -> str:
    """Why the run ended, its score, where it is and what can be done with it."""
    score = "no episode has ended yet" if result.score is None else f"{result.score:.1f}"
    return "\n".join(
        [
            f"\nfinished: {result.reason}",
            f"score:    {score} (mean return of the last 100 episodes, {result.env_steps:,} env steps)",
            f"run:      {result.folder}",
            f"next:     starling eval {result.folder} --episodes 20",
            f"          starling resume {result.folder}",
        ]
    )
