"""The current state of a run's parts, for people: who works, who waits for whom, and why. Does not import torch.

Any thread may collect it, at the price that the numbers of one status may be a moment apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WORKING = "running"
GIVEN_UP = "given up"


@dataclass(frozen=True)
class WorkerStatus:
    """One process that a hub supervises, or one of those that a Ray node holds."""

    name: str
    kind: str
    node: str | None  # the Ray node that holds it
    state: str  # running, starting, hung, waiting for its restart, given up, stopped
    silent_seconds: float = 0.0
    crashes: int = 0
    last_end: str | None = None  # why it died last
    groups: int = 0  # of envs
    lent: int = 0  # slots that it may write fragments into
    env_steps: int = 0  # of its current incarnation
    steps_per_s: float | None = None
    busy: float | None = None  # shares of the time since the last status
    wait_in: float | None = None
    wait_out: float | None = None
    weights: int = 0  # updates of the weights that it uses or publishes
    bytes_in: int = 0  # of weights
    bytes_out: int = 0  # of fragments
    publish_ms: float | None = None  # of the last publication of weights


@dataclass(frozen=True)
class HubStatus:
    """A hub with its tables, credits, and batches."""

    rank: int
    silent_seconds: float  # since its thread last looked at its events
    requests: int  # of other threads, not handled yet
    batches_ready: int
    batches_scored: int  # being scored, or drawn for it
    lent: int  # credits in flight
    free: int  # slots that wait for a credit
    acting_waits: str | None  # why no credit is granted now
    learning_waits: str | None  # why no batch is drawn now
    workers: list[WorkerStatus] = field(default_factory=list)


@dataclass(frozen=True)
class RuntimeStatus:
    """All hubs, and the weights that were published last."""

    env_steps: int
    updates: int
    publish_ms: float | None = None  # by the main process
    weight_bytes: int | None = None
    hubs: list[HubStatus] = field(default_factory=list)


@dataclass(frozen=True)
class RunStatus:
    """The file `status.json` of a run, which its process replaces every other second."""

    written: float  # seconds since 1970
    started: float
    pid: int
    host: str
    phase: str  # training, evaluating, saving; or why the run ended
    ended: bool
    phase_seconds: float  # since the main loop last came around
    runtime: RuntimeStatus
