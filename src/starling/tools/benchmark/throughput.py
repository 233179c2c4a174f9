"""How fast a run goes and how fast it could: env steps a second of real training beside what the cores allow."""

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

from starling.config.schema import Config, EvalConfig, LogConfig, StopConfig
from starling.errors import UserError
from starling.experiment import train as training
from starling.experiment.run_folder.metrics import TIMING
from starling.experiment.status import Status
from starling.hardware import set_up_torch
from starling.launch.plan import RunPlan
from starling.tools.benchmark.costs import Cost, Costs, measure
from starling.tools.benchmark.plan import predict_speed

WARM_UP_VERSIONS = 3
"""Versions of the weights that are left out: memory is touched and libraries choose their ways in the first."""
WARM_UP_SECONDS = 3.0
"""Time after the first version that is left out, or a quarter of the window where that is less."""
PATIENCE = 120.0
"""Seconds within which the first version must come."""
COST_SECONDS = 5.0
QUICK = 0.67
"""Costs are measured again after the run if that takes no more than this share of it."""
ROWS_PER_S = 5
"""Rows of metrics at the predicted speed: small networks may reach only a fifth of it."""
LONG = 10**8
"""Env steps that no measurement reaches, and few enough for the disk that their rows and checkpoints might need."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Mark:
    """What was done by when."""

    time: float
    env_steps: int
    updates: int


@dataclass(frozen=True)
class Reading:
    """What a run did in a window of whole versions of the weights."""

    begin: Mark
    end: Mark
    lag: float | None  # versions between acting and learning; None: no row of metrics fell into the window
    busy: dict[str, float]  # a share of the time by role

    @property
    def seconds(self) -> float:
        return self.end.time - self.begin.time

    @property
    def steps_per_s(self) -> float:
        return (self.end.env_steps - self.begin.env_steps) / self.seconds


class EnoughError(Exception):
    """The window is over: ends the run that is watched."""


class Meter:
    """A display that finds the window, keeps its rows of metrics, and ends the run after it."""

    def __init__(self, seconds: float, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._say, self._clock = seconds, say, clock
        self._started = clock()
        self._last = Mark(self._started, 0, 0)
        self._first: Mark | None = None  # the first new version
        self._begin: Mark | None = None
        self._end: Mark | None = None
        self._rows: list[dict[str, Any]] = []

    def tick(self, status: Status) -> None:
        """Look whether the window begins or ends: only when a version has just come, so that whole ones are counted."""
        now = Mark(self._clock(), status.env_steps, status.updates)
        if now.updates > self._last.updates:
            self._first = self._first or now
            self._new_version(now, self._first)
        elif self._first is None and now.time - self._started > PATIENCE:
            raise UserError(f"no update within {PATIENCE:.0f} s; lower what has to be there before the first one")
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
        """Pass on what happens to the run; where its passing folder is, is of no use."""
        if self._last.time > self._started:
            self._say(line)

    def reading(self) -> Reading:
        assert self._begin is not None, "a window has begun"
        assert self._end is not None, "a window has ended"
        lags = [row["learner/lag"] for row in self._rows if "learner/lag" in row]
        return Reading(self._begin, self._end, fmean(lags) if lags else None, _busy(self._rows))


def _busy(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share of the time in which each role worked; a row stands for the time since the one before."""
    keys = sorted({key for row in rows for key in row if key.startswith(TIMING) and key.endswith("/busy")})
    ends = [row["time/seconds"] for row in rows]
    spans = [max(after - before, 1e-6) for before, after in pairwise(ends)]
    spans = [*spans[:1], *spans] or [1.0]  # the first is taken to be as long as the second
    busy = {key: [(row[key], span) for row, span in zip(rows, spans, strict=True) if key in row] for key in keys}
    return {
        key.split("/")[1]: sum(share * span for share, span in shares) / sum(span for _, span in shares)
        for key, shares in busy.items()
    }


def watch(config: Config, seconds: float, say: Say) -> Reading:
    """Train for real in a passing folder, warm-up first, until so many seconds are measured."""
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
    """The same run, never over and never evaluated; rows and checkpoints come as often as before."""
    changes = {
        "stop": StopConfig(env_steps=max(config.stop.env_steps, LONG)),
        "eval": EvalConfig(),
        "log": LogConfig(every=config.log_every),
        "checkpoint": config.checkpoint.model_copy(update={"every": config.checkpoint_every}),
    }
    return config.model_copy(update=changes)


@dataclass(frozen=True)
class Throughput:
    """A measured run beside its limit."""

    reading: Reading
    costs: Costs
    limits: tuple[float, ...]  # env steps a second that the costs allowed before the run, and after it
    frames_per_step: float

    @property
    def frames_per_s(self) -> float:
        return self.reading.steps_per_s * self.frames_per_step

    @property
    def efficiency(self) -> float:
        return self.reading.steps_per_s / self.costs.limit


def bench(run_plan: RunPlan, seconds: float, say: Say) -> Throughput:
    """Measure a run for so many seconds, and what its steps cost: before it and, where that is quick, after it."""
    set_up_torch(1)
    began = time.monotonic()
    measured = [_costs(run_plan, seconds)]
    quick = time.monotonic() - began <= QUICK * seconds
    often = int(predict_speed(run_plan, measured[0]) / ROWS_PER_S)
    config = run_plan.config.model_copy(update={"log": LogConfig(every=max(1, min(run_plan.config.log_every, often)))})
    reading = watch(config, seconds, say)
    if quick:
        measured.append(_costs(run_plan, seconds))
    return Throughput(reading, mean(measured), tuple(c.limit for c in measured), run_plan.env.frames_per_step)


def _costs(run_plan: RunPlan, seconds: float) -> Costs:
    return measure(run_plan, min(COST_SECONDS, seconds / 4))


def mean(measured: list[Costs]) -> Costs:
    """The mean of every cost, because machines drift, and its extremes."""

    def joined(costs: list[Cost]) -> Cost:
        return Cost(fmean(c.median for c in costs), min(c.low for c in costs), max(c.high for c in costs))

    return replace(
        measured[0],
        env_step=joined([costs.env_step for costs in measured]),
        inference=joined([costs.inference for costs in measured]),
        training=joined([costs.training for costs in measured]),
    )
