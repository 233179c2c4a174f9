"""The part of a Ray cluster that a run uses: its connection, its reserved resources, and the weights it put there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starling.runtime.hub import Hub
from starling.runtime.ray.cluster import Cluster
from starling.runtime.ray.placement import Reservation
from starling.runtime.ray.remote import RemoteWorker
from starling.runtime.ray.remote_node import RayWeights
from starling.runtime.supervisor import RunFailedError


class ClusterLease:
    """Watches the head of the cluster, and fails the run if it no longer answers."""

    def __init__(
        self,
        cluster: Cluster,
        reservation: Reservation,
        hubs: Sequence[Hub],
        weights: Sequence[RayWeights],
        timeout: float,
    ) -> None:
        self._cluster, self._reservation, self._hubs, self._weights = cluster, reservation, hubs, weights
        cluster.watch(timeout, self._head_lost)

    def _head_lost(self, head: str) -> None:
        for hub in self._hubs:
            hub.fail(RunFailedError(f"the head of the Ray cluster at {head} does not answer"))

    def metrics(self) -> dict[str, Any]:
        puts = sum(weights.puts for weights in self._weights)
        return {"ray/nodes": self._cluster.node_count, "ray/weights_put": puts}

    def before_stop(self) -> None:
        """If the head is lost, abandon all remote workers, which can no longer be reached."""
        if self._cluster.lost:
            for hub in self._hubs:
                hub.halt()
                for worker in hub.supervisor.workers.values():
                    if isinstance(worker, RemoteWorker):
                        worker.abandon()

    def release(self) -> None:
        if not self._cluster.lost:
            self._reservation.release()
        self._cluster.close()
