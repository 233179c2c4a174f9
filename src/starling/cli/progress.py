"""Progress display of a run: a bar on a terminal; elsewhere at most one row per second, and a line per half minute."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from starling.cli.show import Fact, Limit, counts, duration, learning, nearest_limit, progress_line, time_left
from starling.config.schema import Config
from starling.errors import escaped
from starling.experiment.bottleneck import KEY as BOTTLENECK
from starling.experiment.display import Status

GAP = "   "
NARROWEST = 10
MOST_OFTEN = 1.0
"""Seconds between two rows where there is no bar; the rows in between are only in the run's files."""
SILENCE = 25.0
"""Seconds without output after which a line is printed where there is no bar."""


class Progress:
    """Shows the progress of a run on `stream`; errors of the stream never stop the run."""

    def __init__(self, config: Config, stream: TextIO | None = None) -> None:
        self._config, self._stream = config, stream or sys.stdout
        self._live = _live(self._stream) if _can_redraw(self._stream) else None
        self._started = self._printed = time.monotonic()
        self._lock = threading.Lock()  # around all output: the heartbeat has a thread of its own
        self._closed = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self._latest: Status | None = None
        self._known: dict[str, Any] = {}  # a row without updates has no losses: keep the last ones
        self._row_printed = -math.inf
        self._held: dict[str, Any] | None = None  # the last row, if it came too soon to be printed
        self._line = ""  # the row printed last
        self._limit = ""  # the bottleneck printed last, without its numbers
        self._over = False

    def tick(self, status: Status) -> None:
        """Redraw the bar, if there is one."""
        self._latest = status
        self._known |= status.metrics
        self._safely(self._redraw)

    def row(self, row: dict[str, Any]) -> None:
        """Print a line if the last one is old enough, unless there is a bar, which is redrawn by the next tick."""
        speed = row["time/steps_per_s"]
        self._latest = Status(
            env_steps=row["env_steps"],
            updates=row["updates"],
            episodes=row["episodes"],
            score=row["return"],
            steps_per_s=speed,
            frames_per_s=row.get("time/frames_per_s", speed),
            metrics=row,
        )
        self._known |= row
        if self._live is None:
            self._held = row
            if time.monotonic() - self._row_printed >= MOST_OFTEN:
                self._safely(self._print_held)

    def message(self, line: str) -> None:
        """Show a line, above the bar if there is one."""
        self._safely(self._print, escaped(line))

    def close(self, last_words: str = "") -> None:
        """Show the last state and `last_words` below it, and stop the display."""
        self._closed.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        self._safely(self._print_held)
        self._safely(self._redraw)
        if self._live is not None:
            self._safely(self._live.stop)
        if last_words:
            self._safely(self._print, last_words)
        self._over = True

    def __enter__(self) -> Progress:
        if self._live is None:
            self._heartbeat = threading.Thread(target=self._beat, name="progress", daemon=True)
            self._heartbeat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _print_held(self) -> None:
        """Print the last row, unless it looks like the one before, and the bottleneck if it changed."""
        row, self._held = self._held, None
        if row is None or self._latest is None:
            return
        line = progress_line(self._latest, self._known, self._config, self._elapsed)
        if line != self._line:
            self._print(line)
            self._row_printed, self._line = self._printed, line
        if limit := self._new_limit(row):
            self._print(escaped(f"bottleneck: {limit}"))

    def _redraw(self) -> None:
        if self._live is None or self._latest is None:
            return
        self._live.start()
        self._live.update(_Picture(self._latest, self._known, self._config, self._elapsed), refresh=True)

    def _beat(self) -> None:
        """Print a line whenever there was none for `SILENCE` seconds, also while the main thread is busy."""
        while not self._closed.wait(max(0.01, self._printed + SILENCE - time.monotonic())):
            if time.monotonic() - self._printed >= SILENCE:
                self._safely(self._print_heartbeat)

    def _print_heartbeat(self) -> None:
        facts = "starting"
        if self._latest is not None:
            facts = progress_line(self._latest, dict(self._known), self._config, self._elapsed)
        self._print(f"{facts}  elapsed {duration(self._elapsed)}")

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(line), soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _new_limit(self, row: dict[str, Any]) -> str:
        """Return the bottleneck if it changed, ignoring its numbers, which change with every row."""
        line = row.get(BOTTLENECK) or ""
        known, self._limit = self._limit, re.sub(r"\d", "", line)
        return line if self._limit != known else ""

    def _safely(self, show: Callable[..., None], *arguments: Any) -> None:
        """Call `show`; on an error stop the display, since training must go on without it."""
        with self._lock:
            if not self._over:
                self._show(show, *arguments)

    def _show(self, show: Callable[..., None], *arguments: Any) -> None:
        try:
            show(*arguments)
        except Exception as error:
            self._over = True
            if isinstance(error, OSError):
                _send_nowhere(self._stream)
            with suppress(Exception):
                if self._live is not None:
                    self._live.stop()
            with suppress(OSError, ValueError):
                if not isinstance(error, OSError):
                    print(f"the display has stopped, training goes on: {error!r}", file=sys.stderr)


@dataclass(frozen=True)
class _Picture:
    """The bar and the facts below it."""

    status: Status
    metrics: dict[str, Any]
    config: Config
    elapsed: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, times, now = options.max_width, self._times(), counts(self.status, self.config.stop.return_)
        words = Text(GAP).join([self._steps(), *(_fact(*fact) for fact in times)])
        if self._room(words, width) >= NARROWEST:
            yield self._bar(words, options)
            yield from _packed(now, width)
        else:
            yield self._bar(self._steps(), options)
            yield from _packed([*times, *now], width)
        yield from _packed(learning(self.metrics, self.config), width)
        if limit := self.status.metrics.get(BOTTLENECK):
            yield _fact("bottleneck", limit)

    def _bar(self, words: Text, options: ConsoleOptions) -> Text:
        """A bar in the width that `words` leave; rich's own, in a table, takes twice as long."""
        width = max(self._room(words, options.max_width), NARROWEST)
        full, empty = ("#", "-") if options.ascii_only else ("━", "─")
        filled = int(width * (self._limit.share if self._limit else 0.0))
        bar = Text.assemble((full * filled, "cyan"), (empty * (width - filled), "dim"))
        return Text.assemble((self._name, "bold"), GAP, bar, " ", words)

    def _room(self, words: Text, width: int) -> int:
        return width - len(self._name) - len(GAP) - 1 - len(words)

    def _steps(self) -> Text:
        limit = self._limit
        if limit is None:
            steps = f"{self.status.env_steps:,} steps"
        else:
            unit = "steps" if limit.whole.unit == "env steps" else limit.whole.unit
            steps = f"{limit.share:4.0%}{GAP}{int(limit.done):,} of {limit.whole.rounded} {unit}"
        return Text(f"{steps}{GAP}evaluating" if self.status.evaluating else steps)

    def _times(self) -> list[Fact]:
        return [("elapsed", duration(self.elapsed)), time_left(self._limit)]

    @property
    def _limit(self) -> Limit | None:
        return nearest_limit(self.status, self.elapsed, self.config)

    @property
    def _name(self) -> str:
        return escaped(f"{self.config.env.id} {self.config.algo.name}")


def _packed(facts: list[Fact], width: int) -> Iterator[Text]:
    """Yield lines with as many facts as fit, without breaking any."""
    line = Text()
    for fact in facts:
        text = _fact(*fact)
        if line and len(line) + len(GAP) + len(text) > width:
            yield line
            line = Text()
        line = line.append(GAP).append_text(text) if line else text
    if line:
        yield line


def _fact(name: str, value: str) -> Text:
    return Text.assemble((escaped(name), "dim"), f" {escaped(value)}")


def _can_redraw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown", "")


def _live(stream: TextIO) -> Live:
    """A live display without a thread; other output to the same terminal goes above it."""
    return Live(
        console=Console(file=stream, force_terminal=True),
        auto_refresh=False,
        redirect_stdout=stream is sys.stdout,
        redirect_stderr=sys.stderr.isatty(),
    )


def _send_nowhere(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that later writes and the flush at exit do not raise."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
