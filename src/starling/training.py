"""A run from beginning to end: builds the system, drives it, writes rows and checkpoints, knows when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starling import topology
from starling.config.schema import Config
from starling.runs import checkpoint, folder
from starling.runs.metrics import TIMING, MetricsFile, Scoreboard
from starling.runtime.inline import InlineRuntime


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    folder: Path
    env_steps: int
    updates: int
    score: float | None  # mean return of the last 100 episodes
    reason: str


def train(config: Config, runs: Path, report: Callable[[dict[str, Any]], None]) -> Result:
    """Start a new run under `runs`; `report` gets every row that is written."""
    runtime = _build(config)
    place = folder.create(runs, config)
    return Session(config, place, runtime, report).run()


def resume(run: Path, report: Callable[[dict[str, Any]], None], warn: Callable[[str], None]) -> Result:
    """Go on with a run from its newest sound checkpoint; `warn` hears of those that were not."""
    place = folder.find(run)
    config = place.config()
    chosen, state, problems = checkpoint.load_newest(place.checkpoints)
    for problem in problems:
        warn(f"checkpoint skipped: {problem}")
    runtime = _build(config)
    warn(f"resuming from {chosen}")
    session = Session(config, place, runtime, report, state)
    return session.run()


def _build(config: Config) -> InlineRuntime:
    blueprint = topology.draw(config)
    topology.set_up_torch(blueprint)
    return topology.build_inline(blueprint)


class Session:
    """One process's part of a run: from its start or a checkpoint to its end."""

    def __init__(
        self,
        config: Config,
        place: folder.RunFolder,
        runtime: InlineRuntime,
        report: Callable[[dict[str, Any]], None],
        state: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.place, self.runtime, self.report = config, place, runtime, report
        self.scores = Scoreboard()
        kept_rows = 0
        if state is not None:
            runtime.restore(state)
            self.scores.set_state(state["session"]["scores"])
            kept_rows = state["session"]["rows"]
        self.metrics = MetricsFile(place.metrics_file, kept_rows)
        self._started = time.monotonic()
        self._start_steps = runtime.env_steps

    def run(self) -> Result:
        """Drive the system until a stop condition holds; the last state is saved."""
        next_row = self._after(self.config.log_every)
        next_save = self._after(self.config.checkpoint_every)
        reason = self._stop_reason()
        steps = self.runtime.run()
        while reason is None:
            next(steps)
            self.scores.add(self.runtime.episodes())
            reason = self._stop_reason()
            if self.runtime.env_steps >= next_row or reason:
                self._write_row()
                next_row = self._after(self.config.log_every)
            if self.runtime.env_steps >= next_save or reason:
                self._save()
                next_save = self._after(self.config.checkpoint_every)
        self.metrics.close()
        self.runtime.close()
        return Result(self.place.path, self.runtime.env_steps, self.runtime.updates, self.scores.mean, reason)

    def _after(self, every: int) -> int:
        """The next multiple of `every` env steps: a function of the count alone, so that resuming agrees."""
        return (self.runtime.env_steps // every + 1) * every

    def _stop_reason(self) -> str | None:
        stop, minutes = self.config.stop, (time.monotonic() - self._started) / 60
        if stop.return_ is not None and self.scores.full and (self.scores.mean or 0.0) >= stop.return_:
            return f"mean return {self.scores.mean:.1f} reached stop.return={stop.return_:g}"
        if self.runtime.env_steps >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps:,} reached"
        if stop.updates is not None and self.runtime.updates >= stop.updates:
            return f"stop.updates={stop.updates:,} reached"
        if stop.minutes is not None and minutes >= stop.minutes:
            return f"stop.minutes={stop.minutes:g} reached"
        return None

    def _write_row(self) -> None:
        seconds = time.monotonic() - self._started
        row = {
            "env_steps": self.runtime.env_steps,
            "updates": self.runtime.updates,
            **self.scores.row(),
            **self.runtime.drain_metrics(),
            f"{TIMING}seconds": round(seconds, 3),
            f"{TIMING}steps_per_s": round((self.runtime.env_steps - self._start_steps) / max(seconds, 1e-9), 1),
        }
        self.metrics.write(row)
        self.report(row)

    def _save(self) -> None:
        state = self.runtime.save(with_tables=self.config.checkpoint.replay)
        state["session"] = {"scores": self.scores.get_state(), "rows": self.metrics.rows}
        checkpoint.save(self.place.checkpoints, self.runtime.env_steps, state, keep=self.config.checkpoint.keep)
