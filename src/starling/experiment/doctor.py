"""Diagnose a run, live or dead, from the files in its folder: findings, each with a cause and what to change."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starling.errors import UserError
from starling.experiment.bottleneck import KEY as BOTTLENECK
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.log import log_lines, read_log
from starling.experiment.run_folder.rows import Rows
from starling.experiment.status import STALE_SECONDS, is_alive, read_status
from starling.experiment.warnings import KEY as WARNINGS
from starling.runtime.status import GIVEN_UP, WORKING, HubStatus, RunStatus, WorkerStatus

STUCK_SECONDS = 60.0
"""Time in which the main loop of a healthy run comes around, unless it evaluates or saves."""
HUB_SECONDS = 10.0
SLOW = 0.5
"""A worker with less than this share of the mean speed is named."""
MOST_LOST = 0.01
"""Share of the env steps that may be lost to crashes without a word."""
DAMAGED = ("the disk, or another program, changed it", "as it says; the rest here is from the other files")


@dataclass(frozen=True)
class Finding:
    """One thing that was found; without a cause it is in order."""

    about: str  # process, waiting, workers, weights, ledger, checkpoints
    what: str
    cause: str | None = None
    change: str | None = None  # a setting, or a command

    @property
    def is_problem(self) -> bool:
        return self.cause is not None


def examine(place: RunFolder) -> list[Finding]:
    """All findings about a run; the first problem is the likely cause of the others."""
    damage: list[Finding] = []
    status, row = _status(place, damage), _last_row(place, damage)
    checkpoints = checkpoint.audit(place.checkpoints) if place.checkpoints.is_dir() else []
    steps = max(row.get("env_steps", 0), 0 if status is None else status.runtime.env_steps)
    newest = next((f"its newest checkpoint {name}" for name, problem in checkpoints if problem is None), None)
    known = f"its last known env step is {steps:,}, and {newest or 'it has no checkpoint'}"
    return [
        *damage,
        *(() if status is None else _process(place, status, known)),
        *(() if status is None else _hubs(place, status)),
        *_waiting(row),
        *_ledger(row),
        *_checkpoints(checkpoints),
    ]


def _status(place: RunFolder, damage: list[Finding]) -> RunStatus | None:
    """Read the status; without one, add a finding."""
    try:
        status = read_status(place.path)
    except UserError as error:
        damage.append(Finding("process", str(error), *DAMAGED))
        return None
    if status is None:
        cause = "it has not been trained by this version"
        damage.append(Finding("process", "no status.json", cause, "starling metrics RUN"))
    return status


def _last_row(place: RunFolder, damage: list[Finding]) -> Mapping[str, Any]:
    """Read the last row of metrics that can be read; add a finding if the file is not one of a run."""
    rows = deque[Mapping[str, Any]](maxlen=1)
    try:
        rows.extend(Rows(place.metrics_file) if place.metrics_file.is_file() else ())
    except UserError as error:
        damage.append(Finding("ledger", str(error), *DAMAGED))
    return rows[0] if rows else {}


def _process(place: RunFolder, status: RunStatus, known: str) -> Iterator[Finding]:
    """Whether the run goes on, and if not, why it ended; `known` says how far it came."""
    age, alive = time.time() - status.written, is_alive(status)
    who = f"process {status.pid} on {status.host}"
    if status.ended:
        failed = "failed" in status.phase or "an error" in status.phase
        cause = f"it {status.phase}" if failed else None
        last = [line.text.partition("\n")[0] for line in log_lines(read_log(place.log_file))[-1:]]
        told = f"; its last message is: {last[0]}" if last and failed else ""
        yield Finding("process", f"{status.phase}{told}", cause, "starling logs RUN" if failed else None)
    elif alive is False:
        yield Finding(
            "process",
            f"{who} is gone without an end, {age:,.0f} s ago while {status.phase}; {known}",
            "it was killed: kill -9, out of memory, or the machine went down",
            "starling plan RUN/config.yaml shows the memory it needs; starling resume RUN continues",
        )
    elif age > STALE_SECONDS:
        where = "" if alive else " or on another machine, where it cannot be seen from here,"
        yield Finding(
            "process",
            f"{who} has written no status for {age:,.0f} s",
            f"it is stopped (Ctrl-Z, SIGSTOP),{where} or its machine is overloaded or suspended",
            f"kill -CONT {status.pid} continues a stopped one; lower actors on a busy machine",
        )
    elif status.phase_seconds > STUCK_SECONDS:
        change = (
            "a faster disk, or a larger checkpoint.every" if status.phase == "saving" else "py-spy dump shows where"
        )
        yield Finding(
            "process",
            f"{who} has been {status.phase} for {status.phase_seconds:,.0f} s",
            "the main loop is stuck, or one step of it takes that long",
            change,
        )
    else:
        yield Finding("process", f"{who} is {status.phase}; status of {age:.0f} s ago")


def _hubs(place: RunFolder, status: RunStatus) -> Iterator[Finding]:
    for hub in status.runtime.hubs:
        if not status.ended and hub.silent_seconds > HUB_SECONDS:
            yield Finding(
                "process",
                f"the hub of rank {hub.rank} has handled no message for {hub.silent_seconds:,.0f} s",
                "its thread is stuck or starved of CPU",
                "lower actors or threads, so that a core is left for it",
            )
        yield from _workers(hub, status)
        if not status.ended:
            waits = [f"acting waits: {hub.acting_waits}"] if hub.acting_waits else []
            waits += [f"learning waits: {hub.learning_waits}"] if hub.learning_waits else []
            rank = f"rank {hub.rank}: " if len(status.runtime.hubs) > 1 else ""
            if hub.acting_waits and hub.learning_waits and not hub.lent and not hub.batches_ready:
                yield Finding(
                    "waiting",
                    f"{rank}{'; '.join(waits)}",
                    "both wait for each other, and nothing is under way",
                    "algo.batch, actors, or the rule named",
                )
            elif waits:
                yield Finding("waiting", f"{rank}{'; '.join(waits)} (normal: the faster side waits for the other)")


def _workers(hub: HubStatus, status: RunStatus) -> Iterator[Finding]:
    """Workers that are gone, have crashed, or are slow or behind."""
    for worker in hub.workers:
        if worker.crashes or worker.state not in (WORKING, "starting", "stopped", "waits for its start"):
            yield _crashed(worker)
        elif worker.state == "starting" and worker.silent_seconds > STUCK_SECONDS:
            yield Finding(
                "workers",
                f"{worker.name} has been starting for {worker.silent_seconds:,.0f} s",
                "it waits for resources, or its env takes long to build",
                "starling logs RUN, or fewer actors",
            )
    acting = [worker for worker in hub.workers if worker.steps_per_s is not None]
    mean = sum(worker.steps_per_s or 0.0 for worker in acting) / max(1, len(acting))
    for worker in acting:
        if len(acting) > 1 and (worker.steps_per_s or 0.0) < SLOW * mean and not worker.crashes and not status.ended:
            yield Finding(
                "workers",
                f"{worker.name} makes {worker.steps_per_s:,.0f} steps/s, and the mean is {mean:,.0f}",
                "its env is slower, or it shares a core with others",
                f"starling logs RUN --worker '{worker.name}'; fewer actors than cores",
            )


def _crashed(worker: WorkerStatus) -> Finding:
    end = worker.last_end or "it has not ended"
    what = f"{worker.name} is {worker.state} after {worker.crashes} crashes, the last: {end}"
    log = f"starling logs RUN --worker '{worker.name}' shows what it printed"
    if worker.state == "hung" or "hung" in end:
        return Finding(
            "workers",
            what,
            "it gave no sign of life: an env step or the start takes too long",
            f"{log}, with its stacks; raise supervision.timeout if it only was slow",
        )
    if "SIGKILL" in end:
        return Finding(
            "workers",
            what,
            "something killed it: often the machine had no memory left",
            f"{log}; fewer actors or env.num, or a smaller algo.capacity",
        )
    if worker.state == GIVEN_UP:
        return Finding(
            "workers",
            what,
            "it crashed more often than supervision.restarts allows",
            f"{log}; fix that, then starling resume RUN",
        )
    return Finding("workers", what, "an exception in the env or in a library", log)


def _waiting(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings on the bottleneck and on warnings, from the last row of metrics."""
    if line := row.get(BOTTLENECK):
        yield Finding("waiting", f"what limits the speed: {line}")
    for warning in str(row.get(WARNINGS) or "").split(" | "):
        if warning:
            yield Finding("weights", warning, "as it says", "as it says")


def _ledger(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether every env step is accounted for."""
    counts = [row.get(f"ledger/{name}") for name in ("produced", "inserted", "open", "lost")]
    produced, inserted, opened, lost = (count if isinstance(count, int) else 0 for count in counts)
    if None in counts:
        return
    text = f"{produced:,} steps produced = {inserted:,} inserted + {opened:,} open + {lost:,} lost"
    if produced != inserted + opened + lost or opened < 0 or lost < 0:
        yield Finding(
            "ledger", text, "the books do not balance, which is a bug of Starling", "report it with this folder"
        )
    elif lost > MOST_LOST * max(1, produced):
        yield Finding(
            "ledger",
            f"{text} ({lost / produced:.1%})",
            "workers die with fragments that they have begun",
            "see workers above; a shorter algo.fragment or algo.unroll loses less",
        )
    else:
        yield Finding("ledger", text)


def _checkpoints(found: list[tuple[str, str | None]]) -> Iterator[Finding]:
    """Whether the newest checkpoints are valid, from `checkpoint.audit`."""
    sound = [name for name, problem in found if problem is None]
    for name, problem in found:
        if problem is not None:
            yield Finding(
                "checkpoints",
                f"{name}: {problem}",
                "the disk lost or changed it",
                "starling resume RUN takes the newest valid one",
            )
    if sound:
        yield Finding("checkpoints", f"{len(sound)} verified, the newest is {sound[0]}")
    elif found:
        yield Finding(
            "checkpoints", "none is valid", "all are damaged", "start again, from replay or weights that were exported"
        )
    else:
        yield Finding("checkpoints", "none yet")
