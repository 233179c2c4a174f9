"""How runs and results are put into words: the same names, units and order wherever they appear."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starling.config.schema import Config
    from starling.runs.status import Status
    from starling.session import Result

Fact = tuple[str, str]
"""What it is, and its value."""


def counts(status: Status, goal: float | None = None) -> list[Fact]:
    """How well the run does and how much it has done, the return beside what it should become."""
    facts = [
        ("return", number(status.score) + ("" if goal is None else f" (goal {goal:g})")),
        ("episodes", f"{status.episodes:,}"),
        ("updates", f"{status.updates:,}"),
        ("steps/s", f"{status.steps_per_s:,.0f}"),
    ]
    if status.frames_per_s > 1.5 * status.steps_per_s:  # an env step is one frame unless the env skips some
        facts.append(("frames/s", f"{status.frames_per_s:,.0f}"))
    return facts


def learning(metrics: dict[str, Any], config: Config) -> list[Fact]:
    """What the last row says of evaluation, losses, tables and how old the policy was that acted."""
    facts = [("eval", number(metrics["eval/return"]))] if "eval/return" in metrics else []
    losses = [key for key in metrics if key.startswith("loss/") and not _of_many(key)]
    facts += [(key.removeprefix("loss/"), f"{metrics[key]:.3g}") for key in losses]
    capacity = getattr(config.algo, "capacity", None)
    for key in [key for key in metrics if key.startswith("store/") and key.endswith("/size")]:
        whole = "" if capacity is None else f" of {capacity:,}"
        if metrics[key] or whole or config.runtime != "inline":  # there a queue is empty at every row
            facts.append((key.split("/")[1], f"{metrics[key]:,.0f}{whole}"))
        capacity = None  # it is that of the first table
    if "learner/lag" in metrics:
        facts.append(("lag", f"{metrics['learner/lag']:.3g}"))
    return facts


def _of_many(key: str) -> bool:
    """Whether it is a number for one of many (`loss/arm/7/return`), which would fill the screen."""
    return any(part.isdigit() for part in key.split("/"))


def progress_line(status: Status, config: Config) -> str:
    """One row of metrics as one line, its counts in columns."""
    whole = config.stop.env_steps
    aligned = [f"{name} {value:>{8 if name == 'updates' else 7}}" for name, value in counts(status)]
    rest = [f"{name} {value}" for name, value in learning(status.metrics, config)]
    steps = f"steps {status.env_steps:>{len(f'{whole:,}')},} {min(status.env_steps / whole, 1):>4.0%}"
    return "  ".join([steps, *aligned, *rest])


def number(value: float | None) -> str:
    """A score, as exact as a person wants it."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def closing_lines(result: Result) -> str:
    """Why the run ended, its score, where it is and what can be done with it."""
    steps = f"{result.env_steps:,} env steps"
    mean = f"{number(result.score)} (mean return of the last 100 episodes, {steps})"
    lines = [
        f"\nfinished: {result.reason}",
        f"score:    {mean if result.score is not None else f'none, no episode has ended yet ({steps})'}",
    ]
    if result.folder.is_dir():
        lines += [
            f"run:      {result.folder}",
            f"next:     starling eval {result.folder} --episodes 20",
            f"          starling resume {result.folder} {result.onward}".rstrip(),
        ]
    return "\n".join(lines)
