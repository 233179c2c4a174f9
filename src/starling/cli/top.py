"""`starling top`"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from starling.cli.arguments import Run
from starling.cli.show import duration, say

if TYPE_CHECKING:
    from starling.runtime.status import HubStatus, RunStatus, WorkerStatus

SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"


def top(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Print once and end; without a terminal always.")] = False,
    most: Annotated[int, typer.Option("--workers", min=1, help="Workers to show, the slowest first.")] = 30,
) -> None:
    """Show what every worker of a run does now: shares of time, speed, age of its weights, traffic, and crashes.

    It is renewed every two seconds, until Ctrl-C or the end of the run. It only reads.

    Example: starling top runs/mine
    """
    from starling.errors import UserError
    from starling.experiment.run_folder.folder import find
    from starling.experiment.status import is_alive, read_status

    path = find(run).path
    again = sys.stdout.isatty() and not once
    while True:
        status = read_status(path)
        if status is None:
            raise UserError(f"{path} has no status.json: it has not been trained by this version; see starling metrics")
        if again:
            print(CLEAR, end="")
        say(str(path))
        gone = not status.ended and is_alive(status) is False
        if gone:
            say(f"process {status.pid} on {status.host} is gone without an end; this is its last status:")
        for line in lines_of(status, most, gone=gone):
            say(line)
        if gone:
            say(f"why, and what to do: starling doctor {path}")
        if gone or status.ended or not again:
            return
        try:
            time.sleep(SECONDS)
        except KeyboardInterrupt:
            return


def lines_of(status: RunStatus, most: int, gone: bool = False) -> list[str]:
    """The whole screen; of a process that is `gone`, no worker runs."""
    if gone or status.ended:
        status = _without_processes(status, "gone" if gone else "stopped")
    runtime = status.runtime
    age, ran = max(0.0, time.time() - status.written), duration(status.written - status.started)
    when = f"{duration(age)} ago, after {ran}" if status.ended else f"written {age:.0f} s ago, {ran} after its start"
    lines = [
        f"{'it was ' if gone else ''}{status.phase}; {when}",
        f"env steps {runtime.env_steps:,}  updates {runtime.updates:,}{_published(status)}",
    ]
    for hub in runtime.hubs:
        lines += ["", *([] if status.ended else _of_hub(hub, len(runtime.hubs))), *_table(hub, status, most)]
    workers = [worker for hub in runtime.hubs for worker in hub.workers]
    return lines + _slowest(workers)


def _without_processes(status: RunStatus, state: str) -> RunStatus:
    """Return the status with this state for every worker that it took to be there, or about to be."""

    def settled(worker: WorkerStatus) -> WorkerStatus:
        there = worker.state in ("running", "starting", "waits for its start", "hung")
        return replace(worker, state=state) if there else worker

    hubs = [replace(hub, workers=[settled(worker) for worker in hub.workers]) for hub in status.runtime.hubs]
    return replace(status, runtime=replace(status.runtime, hubs=hubs))


def _published(status: RunStatus) -> str:
    runtime = status.runtime
    size = "" if runtime.weight_bytes is None else f"  weights {_bytes(runtime.weight_bytes)}"
    return size + ("" if runtime.publish_ms is None else f", published in {runtime.publish_ms:.2f} ms")


def _of_hub(hub: HubStatus, hubs: int) -> list[str]:
    name = f"rank {hub.rank}: " if hubs > 1 else ""
    return [
        f"{name}batches ready {hub.batches_ready}, being scored {hub.batches_scored}; credits in flight {hub.lent},"
        f" slots waiting for one {hub.free}; requests to the hub {hub.requests}",
        f"  acting waits:   {hub.acting_waits or 'for nothing'}",
        f"  learning waits: {hub.learning_waits or 'for nothing'}",
    ]


def _table(hub: HubStatus, status: RunStatus, most: int) -> list[str]:
    head = ("worker", "state", "busy", "in", "out", "steps/s", "behind", "read", "written", "crashes")
    shown = sorted(hub.workers, key=lambda one: (one.state == "running", one.steps_per_s is None, one.steps_per_s or 0))
    rows = [head, *(_row(worker, status.runtime.updates) for worker in shown[:most])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(f"{cell:{'<' if i < 2 else '>'}{widths[i]}}" for i, cell in enumerate(row)) for row in rows]
    hidden = len(shown) - most
    return lines + ([f"and {hidden:,} more: --workers {len(shown)} shows all"] if hidden > 0 else [])


def _row(worker: WorkerStatus, updates: int) -> tuple[str, ...]:
    behind = str(updates - worker.weights) if worker.weights else "-"
    speed = "-" if worker.steps_per_s is None else f"{worker.steps_per_s:,.0f}"
    shares = [_share(share) for share in (worker.busy, worker.wait_in, worker.wait_out)]
    traffic = [_bytes(count) if count else "-" for count in (worker.bytes_in, worker.bytes_out)]
    return (worker.name, worker.state, *shares, speed, behind, *traffic, str(worker.crashes))


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def _slowest(workers: list[WorkerStatus]) -> list[str]:
    """Name the slowest worker that acts, if there are several."""
    speeds = [(worker.steps_per_s, worker.name) for worker in workers if worker.steps_per_s is not None]
    if len(speeds) < 2:
        return []
    speed, name = min(speeds)
    return [
        "",
        f"slowest: {name} with {speed:,.0f} steps/s; the mean is {sum(s for s, _ in speeds) / len(speeds):,.0f}",
    ]
