"""What a run has of a cluster: its connection, its places, the weights it put there; all given back at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starling.runtime.hub import Hub
from starling.runtime.premises import Premises
from starling.runtime.ray.cluster import Cluster
from starling.runtime.ray.placement import Reservation
from starling.runtime.ray.remote import RemoteWorker
from starling.runtime.ray.weights import RayWeights
from starling.runtime.supervisor import RunFailedError


class Tenancy(Premises):
    """Watched for as long as it lasts: a head that does not answer ends the run."""

    def __init__(self, cluster: Cluster, reservation: Reservation, timeout: float) -> None:
        self._cluster, self._reservation, self._timeout = cluster, reservation, timeout
        self._weights: list[RayWeights] = []
        self._hubs: Sequence[Hub] = ()

    def sends(self, weights: RayWeights) -> RayWeights:
        self._weights.append(weights)
        return weights

    def begin(self, hubs: Sequence[Hub]) -> None:
        self._hubs = hubs
        self._cluster.watch(self._timeout, self._head_lost)

    def _head_lost(self, head: str) -> None:
        for hub in self._hubs:
            hub.fail(RunFailedError(f"the head of the Ray cluster at {head} does not answer"))

    def metrics(self) -> dict[str, Any]:
        puts = sum(weights.puts for weights in self._weights)
        return {"ray/nodes": self._cluster.node_count, "ray/weights_put": puts}

    def before_end(self) -> None:
        """Where the head is lost, nobody in the cluster can be told anything: those on this machine still are."""
        if self._cluster.lost:
            for hub in self._hubs:
                hub.halt()
                for worker in hub.supervisor.workers.values():
                    if isinstance(worker, RemoteWorker):
                        worker.abandon()

    def end(self) -> None:
        if not self._cluster.lost:
            self._reservation.release()
        self._cluster.close()
