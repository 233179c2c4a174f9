"""Measure the throughput of real training, and compare it with the limit that the cores allow."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from starling.config.schema import CheckpointConfig, Config, EvalConfig, LogConfig
from starling.config.stop import StopConfig
from starling.errors import UserError
from starling.experiment import train as training
from starling.experiment.display import Status
from starling.experiment.run_folder.metrics import TIMING
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.tools.benchmark.costs import Cost, Costs, measure
from starling.tools.benchmark.plan import predict_speed

WARM_UP_VERSIONS = 3
"""First updates to leave out, in which memory is touched and libraries choose their algorithms."""
WARM_UP_SECONDS = 3.0
"""Time after the first update to leave out, or a quarter of the window if that is less."""
PATIENCE = 120.0
"""Seconds to wait for the first update."""
COST_SECONDS = 5.0
QUICK = 0.67
"""Costs are measured again after the run if that takes no more than this share of it."""
ROWS_PER_S = 5
"""Rows of metrics per second at the predicted speed; small networks may reach only a fifth of it."""
LONG = 10**8
"""More env steps than any measurement reaches, but few enough for the check of the disk space of a run."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Mark:
    """Counts at a point in time."""

    time: float
    env_steps: int
    updates: int


@dataclass(frozen=True)
class Reading:
    """Measurement of a run in a window that begins and ends with an update."""

    begin: Mark
    end: Mark
    lag: float | None  # updates between acting and learning; None: no row of metrics in the window
    busy: dict[str, float]  # share of the time by role

    @property
    def seconds(self) -> float:
        return self.end.time - self.begin.time

    @property
    def steps_per_s(self) -> float:
        return (self.end.env_steps - self.begin.env_steps) / self.seconds


class EnoughError(Exception):
    """Raised at the end of the window to end the run."""


class Meter:
    """Display that determines the window, keeps its rows of metrics, and then ends the run."""

    def __init__(self, seconds: float, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._say, self._clock = seconds, say, clock
        self._started = clock()
        self._last = Mark(self._started, 0, 0)
        self._first: Mark | None = None  # at the first update
        self._begin: Mark | None = None
        self._end: Mark | None = None
        self._rows: list[dict[str, Any]] = []

    def tick(self, status: Status) -> None:
        """Begin or end the window, only right after an update, so that it contains whole updates."""
        now = Mark(self._clock(), status.env_steps, status.updates)
        if now.updates > self._last.updates:
            self._first = self._first or now
            self._new_version(now, self._first)
        elif self._first is None and now.time - self._started > PATIENCE:
            raise UserError(f"no update within {PATIENCE:.0f} s; lower what the first one waits for")
        self._last = now

    def _new_version(self, now: Mark, first: Mark) -> None:
        if self._begin is None:
            warm_up = min(WARM_UP_SECONDS, self._seconds / 4)
            if now.updates >= WARM_UP_VERSIONS and now.time - first.time >= warm_up:
                self._begin = now
        elif now.time - self._begin.time >= self._seconds:
            self._end = now
            raise EnoughError

    def row(self, row: dict[str, Any]) -> None:
        if self._begin is not None:
            self._rows.append(row)

    def message(self, line: str) -> None:
        """Forward messages of the run, but not those at its start about its temporary folder."""
        if self._last.time > self._started:
            self._say(line)

    def reading(self) -> Reading:
        assert self._begin is not None, "a window has begun"
        assert self._end is not None, "a window has ended"
        lags = [row["learner/lag"] for row in self._rows if "learner/lag" in row]
        return Reading(self._begin, self._end, fmean(lags) if lags else None, _busy(self._rows))


def _busy(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the share of busy time of each role; a row counts for the time since the previous one."""
    keys = sorted({key for row in rows for key in row if key.startswith(TIMING) and key.endswith("/busy")})
    ends = [row["time/seconds"] for row in rows]
    spans = [max(after - before, 1e-6) for before, after in pairwise(ends)]
    spans = [*spans[:1], *spans] or [1.0]  # assume that the first is as long as the second
    busy = {key: [(row[key], span) for row, span in zip(rows, spans, strict=True) if key in row] for key in keys}
    return {
        key.split("/")[1]: sum(share * span for share, span in shares) / sum(span for _, span in shares)
        for key, shares in busy.items()
    }


def watch(config: Config, seconds: float, say: Say) -> Reading:
    """Train in a temporary folder until `seconds` are measured after the warm-up."""
    meter = Meter(seconds, say)
    with tempfile.TemporaryDirectory(prefix="starling-") as runs:
        try:
            result = training.train(without_end(config), Path(runs), meter)
        except EnoughError:
            return meter.reading()
    if result.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if result.signal is not None:
        raise SystemExit(result.exit_code)
    raise UserError(f"the run ended before it was measured: {result.reason}")


def without_end(config: Config) -> Config:
    """Return the configuration without end and evaluations; rows and checkpoints are written as often as before."""
    changes = {
        "stop": StopConfig(env_steps=max(config.stop.env_steps or 0, LONG)),
        "eval": EvalConfig(),
        "log": LogConfig(every=config.log_every),
        "checkpoint": CheckpointConfig(**{**dict(config.checkpoint), "every": config.checkpoint_every}),
    }
    return config.model_copy(update=changes)


@dataclass(frozen=True)
class Throughput:
    """Measured throughput of a run, and its limit."""

    reading: Reading
    costs: Costs
    limits: tuple[float, ...]  # env steps per second by the costs before the run and, if measured, after it
    frames_per_step: float

    @property
    def frames_per_s(self) -> float:
        return self.reading.steps_per_s * self.frames_per_step

    @property
    def efficiency(self) -> float:
        return self.reading.steps_per_s / self.costs.limit


def bench(run_plan: RunPlan, seconds: float, say: Say) -> Throughput:
    """Measure a run for `seconds`, and the costs of its steps before it and, if that is quick, also after it."""
    set_up_torch(1)
    began = time.monotonic()
    measured = [_costs(run_plan, seconds)]
    quick = time.monotonic() - began <= QUICK * seconds
    often = int(predict_speed(run_plan, measured[0]) / ROWS_PER_S)
    every = run_plan.config.log_every
    rarely = int(every.amount) if every.unit == "env steps" else often
    config = run_plan.config.model_copy(update={"log": LogConfig(every=max(1, min(rarely, often)))})
    reading = watch(config, seconds, say)
    if quick:
        measured.append(_costs(run_plan, seconds))
    return Throughput(reading, mean(measured), tuple(c.limit for c in measured), run_plan.env.frames_per_step)


def _costs(run_plan: RunPlan, seconds: float) -> Costs:
    return measure(run_plan, min(COST_SECONDS, seconds / 4))


def mean(measured: list[Costs]) -> Costs:
    """Return the mean of every cost, since the speed of machines drifts, with its minimum and maximum."""

    def joined(costs: list[Cost]) -> Cost:
        return Cost(fmean(c.median for c in costs), min(c.low for c in costs), max(c.high for c in costs))

    return replace(
        measured[0],
        env_step=joined([costs.env_step for costs in measured]),
        inference=joined([costs.inference for costs in measured]),
        training=joined([costs.training for costs in measured]),
    )
