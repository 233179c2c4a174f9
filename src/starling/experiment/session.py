"""The main loop of a run: drive the runtime, write metrics and checkpoints, evaluate, and stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from starling.config.load import secret_values, to_shown
from starling.config.quantities import Quantity
from starling.config.secrets import hide_in
from starling.envs.faults import EnvFault
from starling.errors import UserError, escaped
from starling.experiment.alarm import Alarm, Counters
from starling.experiment.bottleneck import KEY, Bottleneck
from starling.experiment.display import Display, Logged, Status
from starling.experiment.episode_lines import EpisodeLines
from starling.experiment.prometheus import ADDRESS, MetricsServer
from starling.experiment.run_folder import checkpoint, folder
from starling.experiment.run_folder.metrics import TIMING, MetricsFile, Scoreboard
from starling.experiment.run_folder.saving import Saver, write_dump
from starling.experiment.run_folder.tensorboard import TensorBoardFile
from starling.experiment.status import StatusWriter, has_ended
from starling.experiment.warnings import KEY as WARNINGS
from starling.experiment.warnings import Watch
from starling.experiment.worker_output import WorkerOutput
from starling.hardware import compiles
from starling.launch.plan import RunPlan, most_updates
from starling.launch.runtime import Runtime
from starling.learner.learner import DivergedError
from starling.process_exit import Interrupts
from starling.runtime.processes_runtime import ProcessesRuntime
from starling.runtime.supervisor import RunFailedError

TICK_SECONDS = 0.25


@dataclass(frozen=True)
class Result:
    """Result of a run: its counts and scores, and the reason why it ended."""

    folder: Path
    env_steps: int
    updates: int
    score: float | None  # mean return of the last `scored` training episodes
    scored: int  # 100, or fewer if the run had fewer
    evaluation: float | None  # mean return of the last evaluation, over `eval_episodes`
    eval_episodes: int
    reason: str
    signal: signal.Signals | None  # that ended the run early
    failed: bool  # ended by an error
    resume_overrides: str  # settings to change before resuming, else the run would stop at once

    @property
    def exit_code(self) -> int:
        """0 after a normal end or Ctrl-C, 1 after a failure, 143 after SIGTERM and 129 after SIGHUP for schedulers."""
        if self.failed:
            return 1
        return 0 if self.signal in (None, signal.SIGINT) else 128 + self.signal


class Session:
    """Run a runtime from its start, or from a checkpoint, until a stop condition holds."""

    def __init__(
        self,
        run_plan: RunPlan,
        run_folder: folder.RunFolder,
        runtime: Runtime,
        display: Display,
        state: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._run_plan = run_plan
        self._clock = clock  # seconds
        self.config, self.run_folder, self.runtime, self.display = run_plan.config, run_folder, runtime, display
        self._frames_per_step, self._exploration_metrics = run_plan.env.frames_per_step, run_plan.exploration_metrics
        self.scores = Scoreboard()
        self._evaluated: float | None = None
        if state is not None:
            self.scores.set_state(state["scores"])
            self._evaluated = state["evaluated"]
        settings = self.config.checkpoint
        retention = checkpoint.Retention(settings.keep, settings.keep_every, settings.best)
        rows = 0 if state is None else state["rows"]
        window = max((table.length for table in run_plan.tables if table.storage == "ring"), default=0)
        self._watch = Watch(self.config, window)
        seen = self._watch.remember
        self.metrics = MetricsFile(run_folder.metrics_file, display.message, rows, runtime.env_steps, seen)
        self._saver = Saver(run_folder.checkpoints, retention, display.message, self.metrics.sync)
        self._bottleneck = Bottleneck(self.config)
        start = None if state is None else runtime.env_steps
        self.board = TensorBoardFile(run_folder.path, start, display.message, to_shown(self.config))
        self._started = self._clock()
        self._counters: Counters = {
            "env steps": lambda: self.runtime.env_steps,
            "frames": lambda: self.runtime.env_steps * self._frames_per_step,
            "updates": lambda: self.runtime.updates,
            "episodes": lambda: self.scores.episodes,
            "minutes": lambda: (self._clock() - self._started) / 60,
        }
        self._start_steps, self._start_updates = runtime.env_steps, runtime.updates
        self._last_row: dict[str, Any] = {}
        self._episode_lines = EpisodeLines(self.config.log.episodes, self._clock)
        self._speed_window = (self._started, runtime.env_steps)
        self._next_tick = 0.0
        self._interrupts = interrupts or Interrupts()
        show = display.aside if isinstance(display, Logged) else display.message
        self._status = StatusWriter(run_folder.path, runtime.status)
        self._prometheus: MetricsServer | None = None
        if (port := self.config.log.prometheus) is not None:
            self._prometheus = MetricsServer(port, lambda: self._last_row, lambda: self._status.newest)
            display.message(f"metrics for Prometheus: http://{ADDRESS}:{self._prometheus.port}/metrics")
        self._output = WorkerOutput(run_folder, show, secret_values(self.config), self._clock)
        if isinstance(runtime, ProcessesRuntime):
            runtime.last_saved = self._last_saved

    def _last_saved(self) -> dict[str, Any] | None:
        """Return the tables of the newest valid checkpoint, to replace a lost shard; None if there is no checkpoint."""
        try:
            _, state, _ = checkpoint.find(self.run_folder.checkpoints, parts=("store",))
        except UserError:
            return None
        tables: dict[str, Any] = state["store"]
        return tables

    def run(self) -> Result:
        """Drive the runtime until a stop condition holds, then save its state."""
        failed, reason = False, "an error"
        idle = self._stop_reason() is not None and has_ended(self.run_folder.path)  # the last status says more
        if not idle:
            self._status.start()
        if compiles(self.config):
            self.display.message("the loss is compiled at the first update, which takes up to half a minute")
        try:
            with self._interrupts:
                try:
                    reason = self._drive()
                except RunFailedError as error:
                    failed, reason = True, f"failed: {error}"
                    self._collect_episodes_and_notices()
                    with suppress(folder.RunGoneError, DivergedError):
                        self._save()
                except folder.RunGoneError as error:
                    failed, reason = True, f"failed: {error}"
                except DivergedError as error:  # raised in the middle of a step: the state is not worth saving
                    failed, reason = True, f"failed: {error}"
                    self._dump_divergence(error)
                self._saver.finish()
        except EnvFault as fault:
            secrets = secret_values(self.config)
            lines = [hide_in(str(fault), secrets), *hide_in(fault.details, secrets).splitlines()]
            self.run_folder.log("\n".join(map(escaped, lines)))
            raise
        finally:
            with ExitStack() as closing:  # closes all of them, even if one fails
                closing.callback(lambda: self._output.take(self.runtime.printed()))  # after the end of all workers
                if self._prometheus is not None:
                    closing.callback(self._prometheus.close)
                if not idle:
                    closing.callback(lambda: self._status.close(f"ended: {reason}"))
                for part in (self.runtime, self.board, self.metrics, self._saver):
                    closing.callback(part.close)
        if unsaved := self._saver.failure or self.metrics.failure:
            failed, reason = True, f"{reason}; failed: {unsaved}"
        runtime = self.runtime
        received = self._interrupts.received
        mean, counted, evaluated = self.scores.mean, self.scores.counted, self._evaluated
        episodes = self.config.eval.episodes
        score = "no score" if mean is None else f"score {mean:,.2f} (last {counted} episodes)"
        score += "" if evaluated is None else f", evaluation {evaluated:,.2f} ({episodes} episodes)"
        self.run_folder.log(f"finished: {escaped(reason)}, {runtime.env_steps:,} env steps, {score}")
        resume_overrides = " ".join(setting for _, setting in self._reached() if setting)
        return Result(
            folder=self.run_folder.path,
            env_steps=runtime.env_steps,
            updates=runtime.updates,
            score=mean,
            scored=counted,
            evaluation=evaluated,
            eval_episodes=episodes,
            reason=reason,
            signal=received,
            failed=failed,
            resume_overrides=resume_overrides,
        )

    def _dump_divergence(self, error: DivergedError) -> None:
        """Dump the batch at which training diverged, and display a message that says what to do."""
        self._saver.finish()
        dump = self.run_folder.path / "diverged"
        counts = {"env_steps": self.runtime.env_steps, "updates": self.runtime.updates}
        try:
            write_dump(dump, reason=str(error), norms=error.norms, batch=error.batch, **counts)
        except OSError as problem:
            self.display.message(f"cannot write {dump}: {problem.strerror}")
        saved = checkpoint.newest_sound(self.run_folder.checkpoints)
        where = "no checkpoint was written before" if saved is None else f"the last sound checkpoint is {saved.name}"
        self.display.message(f"training diverged: {error}; {where}; lower the learning rate, or look at {dump}")

    def _drive(self) -> str:
        config, every = self.config, self.config.eval.every
        row, save = Alarm(config.log_every, self._counters), Alarm(config.checkpoint_every, self._counters)
        evaluation = Alarm(None if every is None else Quantity.of(every, "env steps"), self._counters)
        steps = self.runtime.run()
        reason = self._stop_reason()
        if self._interrupts.received is not None:
            self._save()  # a signal came before the first step
        while reason is None:
            self._status.enter("training")
            next(steps)
            self._saver.check()
            self._collect_episodes_and_notices()
            row_due, save_due, eval_due = row.due, save.due, evaluation.due
            reason = self._stop_reason()  # only once per iteration: a reason that came later would skip the last save
            if every is not None and (eval_due or reason is not None) and self._interrupts.received is None:
                reason = self._evaluate(reason)
                evaluation.restart()
            stopping = reason is not None
            if stopping:
                self.runtime.halt()
            evaluated = self._take_evaluations()
            if row_due or stopping or evaluated:
                self._write_row(evaluated)
                row.restart()
            if stopping or (save_due and not self.runtime.learner.skipping):
                self._save()
                save.restart()
            self._tick()
        return reason

    def _evaluate(self, reason: str | None) -> str | None:
        """Evaluate the current weights and return the reason to stop, if any; given a `reason`, for the last time.

        The state is saved before the last evaluation, which may take long. If `stop.minutes` is reached while training
        waits for an evaluation, it becomes the last one. A signal drops an evaluation that is waited for: it has no row
        of metrics. Over processes training waits only for the last one; whatever the evaluator still plays when the run
        ends is dropped with its process.
        """
        last = reason is not None
        if last:
            self._save()
        for _ in self.runtime.evaluate(wait=last):
            self._collect_episodes_and_notices()
            self._tick(evaluating=True)
            self._status.enter("evaluating")
            reason = reason or self._stop_reason()
            if self._interrupts.received is not None:
                return self._stop_reason()
            if reason is not None and not last:
                last = True
                self._save()
        return reason

    def _stop_reason(self) -> str | None:
        if self._interrupts.received is not None:
            return f"{self._interrupts.received.name} received"
        return next((reason for reason, _ in self._reached()), None)

    def _reached(self) -> Iterator[tuple[str, str]]:
        """Yield the stop conditions that hold, each with a setting that lifts it; resuming restarts `stop.minutes`."""
        stop = self.config.stop
        if stop.return_ is not None and self.scores.full and (self.scores.mean or 0.0) >= stop.return_:
            yield f"mean return {self.scores.mean:.1f} reached stop.return={stop.return_:g}", "stop.return=null"
        for limit in stop.limits:
            if self._counters[limit.unit]() >= limit.amount:
                yield f"{_key(limit)}={limit.rounded} reached", self._lifted(limit)

    def _lifted(self, limit: Quantity) -> str:
        """Settings with which a run goes on that has reached this limit."""
        if limit.unit == "minutes":
            return ""
        doubled = [limit]
        if limit.unit == "updates":  # which may have to come before the end in env steps
            most = most_updates(self._run_plan)
            whole = self.config.stop.length
            doubled += [whole] if whole is not None and most is not None and 2 * limit.amount > most else []
        return " ".join(f"{_key(each)}={2 * each.amount}" for each in doubled)

    def _collect_episodes_and_notices(self) -> None:
        """Collect finished episodes and display the runtime's notices."""
        for episode in self.runtime.episodes():
            self.scores.add([episode])
            if self._episode_lines.is_due(self.scores.episodes):
                self._show_episodes()
        self._output.take(self.runtime.printed())
        for line in self.runtime.notices():
            self.display.message(line)

    def _show_episodes(self) -> None:
        steps, updates = self.runtime.env_steps, self.runtime.updates
        newest = {**self._last_row, **self._exploration_metrics(steps, updates), **self.runtime.recent_losses()}
        self.display.message(self._episode_lines.line(self.scores, steps, newest))

    def _take_evaluations(self) -> dict[str, float]:
        """Return the metrics of the newest finished evaluation, or an empty dict."""
        rows = self.runtime.evaluations()
        if rows:
            self._evaluated = rows[-1]["eval/return"]
        return rows[-1] if rows else {}

    def _write_row(self, evaluation: dict[str, float]) -> None:
        self.run_folder.check_there()
        seconds = self._clock() - self._started
        speed = (self.runtime.env_steps - self._start_steps) / max(seconds, 1e-9)
        row: dict[str, Any] = {
            "env_steps": self.runtime.env_steps,
            "updates": self.runtime.updates,
            **self.scores.row(),
            **evaluation,
            **self._exploration_metrics(self.runtime.env_steps, self.runtime.updates),
            **self.runtime.drain_metrics(),
            **self._saver.metrics(),
            f"{TIMING}seconds": round(seconds, 3),
            f"{TIMING}steps_per_s": round(speed, 1),
            f"{TIMING}frames_per_s": round(speed * self._frames_per_step, 1),
            f"{TIMING}updates_per_s": round((self.runtime.updates - self._start_updates) / max(seconds, 1e-9), 1),
        }
        if line := self._bottleneck.line(row):
            row[KEY] = line
        wrong, unsaid = self._watch.look(row)
        if wrong:
            row[WARNINGS] = " | ".join(wrong)
        for warning in unsaid:
            self.display.message(f"warning: {warning}")
        self.metrics.write(row)
        self.board.write(row)
        self.display.row(row)
        self._last_row = row

    def _save(self) -> None:
        self.run_folder.check_there()
        self._status.enter("saving")
        if self._interrupts.received is not None:
            self.display.message("saving; a second signal ends at once, without saving")
        self._saver.save(self._take_state, self._evaluated if self.config.eval.every is not None else self.scores.mean)

    def _take_state(self) -> tuple[int, dict[str, Any]]:
        """Return the env steps so far and the state to save."""
        state = self.runtime.save(with_tables=self.config.checkpoint.replay)
        weights = {name: torch.as_tensor(value) for name, value in state["learner"]["model"].items()}
        if odd := [name for name, value in weights.items() if value.isnan().any()]:
            raise DivergedError(f"{odd[0]} is NaN after update {self.runtime.updates:,}")
        state["session"] = {
            "scores": self.scores.get_state(),
            "evaluated": self._evaluated,
            "rows": self.metrics.rows,
        }
        return self.runtime.env_steps, state

    def _tick(self, evaluating: bool = False) -> None:
        """Update the display, at most once every `TICK_SECONDS`."""
        now = self._clock()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_SECONDS
        self.run_folder.check_there()
        since, steps = self._speed_window
        speed = (self.runtime.env_steps - steps) / max(now - since, 1e-9)
        if now - since > 5:
            self._speed_window = (now, self.runtime.env_steps)
        self.display.tick(
            Status(
                env_steps=self.runtime.env_steps,
                updates=self.runtime.updates,
                episodes=self.scores.episodes,
                score=self.scores.mean,
                steps_per_s=speed,
                frames_per_s=speed * self._frames_per_step,
                metrics=self._last_row,
                evaluating=evaluating,
            )
        )


def _key(limit: Quantity) -> str:
    return f"stop.{limit.unit.replace(' ', '_')}"
