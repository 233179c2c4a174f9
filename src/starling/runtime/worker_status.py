"""The status of every worker, with what it did since the status before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starling.actor.usage import BUSY, WAIT_IN, WAIT_OUT, Shares
from starling.runtime.credits import Credits
from starling.runtime.status import WORKING, WorkerStatus
from starling.runtime.worker import ACTING, Member, Worker


class Looks:
    """Shares of time and steps per second since the last look at a worker."""

    def __init__(self) -> None:
        self._shares = Shares()
        self._steps: dict[str, tuple[float, int]] = {}

    def shares(self, member: Member) -> dict[str, float]:
        return self._shares.look(member.name, member.cells)

    def steps_per_s(self, name: str, env_steps: int) -> float | None:
        """Env steps per second; None at the first look, and after a restart."""
        now = time.monotonic()
        then, before = self._steps.get(name, (now, env_steps))
        self._steps[name] = now, env_steps
        return round((env_steps - before) / (now - then), 1) if now > then and env_steps >= before else None


def worker_statuses(workers: Iterable[Worker], credits: Credits, looks: Looks) -> list[WorkerStatus]:
    """The status of each worker; those of a Ray node follow the node."""
    found: list[WorkerStatus] = []
    lent: Counter[str] = Counter()
    for slots in credits.actor_slots.values():
        lent[slots.writer] += len(slots.lent)
    for worker in workers:
        members = {member.name: member for member in worker.members}
        found.append(_of_worker(worker, lent[worker.name], members.pop(worker.name, None), looks))
        found += [_of_member(member, worker.name, looks) for member in members.values()]
    return found


def _of_worker(worker: Worker, lent: int, member: Member | None, looks: Looks) -> WorkerStatus:
    numbers = {} if member is None or not worker.running else _numbers(member, looks)
    return WorkerStatus(
        name=worker.name,
        kind=worker.spec.kind,
        node=None,
        state=worker.state,
        silent_seconds=round(worker.silent_seconds, 3) if worker.running else 0.0,
        crashes=worker.crashes,
        last_end=worker.last_end or None,
        groups=len(worker.spec.groups),
        lent=lent,
        **numbers,
    )


def _of_member(member: Member, node: str, looks: Looks) -> WorkerStatus:
    return WorkerStatus(name=member.name, kind=member.kind, node=node, state=WORKING, **_numbers(member, looks))


def _numbers(member: Member, looks: Looks) -> dict[str, Any]:
    counters, shares = member.counters, looks.shares(member)
    return {
        "env_steps": counters["env_steps"],
        "steps_per_s": looks.steps_per_s(member.name, counters["env_steps"]) if member.kind in ACTING else None,
        "busy": _rounded(shares.get(BUSY)),
        "wait_in": _rounded(shares.get(WAIT_IN)),
        "wait_out": _rounded(shares.get(WAIT_OUT)),
        "weights": counters["weights"],
        "bytes_in": counters["bytes_in"],
        "bytes_out": counters["bytes_out"],
        "publish_ms": counters["publish"] / 1e6 if counters["publish"] else None,
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)
