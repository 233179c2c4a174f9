"""Formats runs and results with consistent names, units, and order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starling.errors import escaped

if TYPE_CHECKING:
    from starling.config.quantities import Quantity, Unit
    from starling.config.schema import Config
    from starling.experiment.display import Status
    from starling.experiment.session import Result

Fact = tuple[str, str]
"""A name and its formatted value."""


LONGEST_LINE = 160
"""Maximum characters of a progress line; omitted facts are in the run's files."""

MAIN_LOSSES = ("q", "policy", "critic", "actor", "value", "q_values")
"""Losses with these names come before others."""

COLUMNS = {"return": 7, "eval": 7, "episodes": 6, "steps/s": 6, "left": 7, "epsilon": 6}
"""The first facts of a progress line after its steps, with the width of each value."""


def counts(status: Status, target: float | None = None) -> list[Fact]:
    """Return, counts, and speed of a run; the return includes the target if one is given."""
    facts = [
        ("return", number(status.score) + ("" if target is None else f" (target {target:g})")),
        ("episodes", f"{status.episodes:,}"),
        ("updates", f"{status.updates:,}"),
        ("steps/s", f"{status.steps_per_s:,.0f}"),
    ]
    if status.frames_per_s > 1.5 * status.steps_per_s:  # only for envs that skip frames
        facts.append(("frames/s", f"{status.frames_per_s:,.0f}"))
    return facts


def learning(metrics: dict[str, Any], config: Config) -> list[Fact]:
    """Evaluation, exploration, losses, tables, and policy lag; losses of sources come last."""
    losses = [key for key in metrics if key.startswith("loss/") and not _of_many(key)]
    plain = [key for key in losses if key.count("/") == 1]
    lag = [("lag", f"{number(metrics['learner/lag'])} updates")] if "learner/lag" in metrics else []
    return [
        *_evaluation(metrics, config),
        *_epsilon(metrics),
        *_losses(metrics, plain),
        *_tables(metrics, config),
        *lag,
        *_losses(metrics, [key for key in losses if key not in plain]),
    ]


def _evaluation(metrics: dict[str, Any], config: Config) -> list[Fact]:
    known = config.eval.every is not None or "eval/return" in metrics
    return [("eval", number(metrics.get("eval/return")))] if known else []


def _epsilon(metrics: dict[str, Any]) -> list[Fact]:
    """The mean epsilon over envs, and the range if they differ."""
    if "explore/epsilon" not in metrics:
        return []
    mean, low, high = (metrics.get(f"explore/epsilon{which}") for which in ("", "_min", "_max"))
    return [("epsilon", f"{mean:.3g}" + ("" if low is None else f" ({low:.2g} to {high:.2g})"))]


def _losses(metrics: dict[str, Any], keys: list[str]) -> list[Fact]:
    return [(key.removeprefix("loss/"), f"{metrics[key]:.3g}") for key in keys]


def _tables(metrics: dict[str, Any], config: Config) -> list[Fact]:
    """The filled share of each replay table; for other tables the number of fragments."""
    facts = []
    for key in [key for key in metrics if key.startswith("store/") and key.endswith("/size")]:
        name = key.split("/")[1]
        cells, room = (metrics.get(f"store/{name}/{what}") for what in ("cells", "capacity"))
        if cells is not None:
            facts.append((name, f"{cells / room:.1%} of {room:,} steps"))
        elif metrics[key] or config.runtime != "inline":  # inline, a queue is empty at every row
            facts.append((name, f"{metrics[key]:,.0f} fragments"))
    return facts


def _of_many(key: str) -> bool:
    """Return True if a metric is one of an indexed family (`eval/arm/7/return`), which would fill the screen."""
    return any(part.isdigit() for part in key.split("/"))


@dataclass(frozen=True)
class Limit:
    """A limit of a run: how much of it is done, and its current speed per second (0 if unknown)."""

    whole: Quantity
    done: float
    speed: float

    @property
    def share(self) -> float:
        return min(self.done / self.whole.amount, 1.0)

    @property
    def seconds_left(self) -> float | None:
        return max(0.0, self.whole.amount - self.done) / self.speed if self.speed > 0 else None


def nearest_limit(status: Status, elapsed: float, config: Config) -> Limit | None:
    """The limit that ends the run first at the current speed, after `elapsed` seconds; None if only a return does."""
    frames_per_step = status.frames_per_s / status.steps_per_s if status.steps_per_s > 0 else 1.0
    counts_and_speeds: dict[Unit, tuple[float, float]] = {
        "env steps": (status.env_steps, status.steps_per_s),
        "frames": (round(status.env_steps * frames_per_step), status.frames_per_s),
        "updates": (status.updates, status.metrics.get("time/updates_per_s", 0.0)),
        "episodes": (status.episodes, status.steps_per_s * status.episodes / max(status.env_steps, 1)),
        "minutes": (elapsed / 60, 1 / 60),
    }
    limits = [Limit(whole, *counts_and_speeds[whole.unit]) for whole in config.stop.limits]
    return min(limits, key=_order_of_end, default=None)


def _order_of_end(limit: Limit) -> tuple[bool, float]:
    """Sort key: limits that are near come first, and those without a known speed last, by their share."""
    left = limit.seconds_left
    return (True, -limit.share) if left is None else (False, left)


def time_left(limit: Limit | None) -> Fact:
    """Time left until a limit at the current speed."""
    left = None if limit is None else limit.seconds_left
    return "left", "-" if left is None else duration(left)


def progress_line(status: Status, metrics: dict[str, Any], config: Config, elapsed: float) -> str:
    """Format a row of metrics as one line: as many facts as fit, the most important first, counts in columns."""
    limit = nearest_limit(status, elapsed, config)
    line = f"steps {status.env_steps:>{len(f'{config.stop.env_steps or 0:,}')},}"
    line += "" if limit is None else f" {limit.share:>4.0%}"
    facts = [*counts(status), time_left(limit), *learning(metrics, config)]
    for name, value in sorted(facts, key=lambda fact: _place(fact[0], metrics)):
        more = f"  {escaped(name)} {value:>{COLUMNS.get(name, 0)}}"
        if len(line) + len(more) > LONGEST_LINE:
            break
        line += more
    return line


def _place(name: str, metrics: dict[str, Any]) -> int:
    """Sort key of a fact in a progress line: columns, main losses, counts, other losses, tables, losses of sources."""
    order = [*COLUMNS, *MAIN_LOSSES, "updates", "frames/s"]
    if name in order:
        return order.index(name)
    return len(order) + (f"loss/{name}" not in metrics or "/" in name)


def say(line: str) -> None:
    """Print one line with control characters escaped."""
    print(escaped(line))


def number(value: float | None) -> str:
    """Format a score with a readable number of digits; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format as hours, minutes, and seconds, or as days and hours from one day on."""
    whole = timedelta(seconds=round(seconds))
    return f"{whole.days:,}d {whole.seconds // 3600}h" if whole.days else str(whole)


def closing_lines(result: Result) -> str:
    """Format the result of a run: why it ended, its scores, its folder, and the next commands."""
    steps = f"{result.env_steps:,} env steps"
    score, evaluation = f"none, no episode has ended yet ({steps})", []
    if result.score is not None:
        score = f"{number(result.score)} (mean return of the last {_episodes(result.scored)}, {steps})"
    if result.evaluation is not None:
        count = result.eval_episodes
        how = "return of one episode" if count == 1 else f"mean return of {_episodes(count)}"
        evaluation = [f"eval:     {number(result.evaluation)} ({how} without exploration)"]
    lines = ["", f"finished: {result.reason}", f"score:    {score}", *evaluation]
    if result.folder.is_dir():
        from starling.experiment.run_folder.folder import RunFolder

        run, resume = RunFolder(result.folder), f"starling resume {result.folder} {result.resume_overrides}".rstrip()
        lines += [
            f"run:      {result.folder}",
            f"next:     starling eval {result.folder} --episodes 20 {run.options(joins=False)}".rstrip(),
            f"          {resume} {run.options(joins=True)}".rstrip(),
        ]
    return "\n".join(map(escaped, lines))


def show_curve(result: Result) -> None:
    """Draw the learning curve of a run that ended by itself into its folder, and print its name."""
    if result.failed or result.signal is not None:
        return
    from starling.tools.report.curve import write_curve

    if (file := write_curve(result.folder, f"{result.folder.name}: {result.env_steps:,} env steps")) is not None:
        say(f"curve:    {file}")


def _episodes(count: int) -> str:
    return "episode" if count == 1 else f"{count:,} episodes"
