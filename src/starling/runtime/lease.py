"""The cluster that the workers of a run use; runtimes know no more of it than this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from starling.runtime.hub import Hub


class Lease(Protocol):
    """A connection to a cluster with reserved resources; see `runtime.ray.cluster_lease`."""

    def metrics(self) -> dict[str, Any]: ...

    def before_stop(self) -> None:
        """Called before the workers are told to stop."""
        ...

    def release(self) -> None:
        """Give the resources back, once all workers have stopped."""
        ...


def lease_metrics(lease: Lease | None) -> dict[str, Any]:
    return {} if lease is None else lease.metrics()


def close_hubs(hubs: Sequence[Hub], lease: Lease | None) -> None:
    """Stop all hubs with their workers, then give back what they used."""
    if lease is not None:
        lease.before_stop()
    for hub in hubs:
        hub.halt()
    for hub in hubs:
        hub.supervisor.tell_to_stop()  # all at once: a rank that waits for another then ends with it
    for hub in hubs:
        hub.stop()
    if lease is not None:
        lease.release()
