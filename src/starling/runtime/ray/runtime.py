"""A run whose actors and evaluator are in a Ray cluster; store and learner are in this process."""

from __future__ import annotations

from typing import Any

from starling.roles.learner import Learner
from starling.runtime.crew import RunFailedError
from starling.runtime.hub import Hub
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.ray.cluster import Cluster
from starling.runtime.ray.placement import Reservation
from starling.runtime.ray.sharded import ShardedStore
from starling.runtime.ray.weights import RayWeights
from starling.runtime.weights import WeightWriter


class RayRuntime(ProcessesRuntime):
    """As over processes, only that workers are far away and the cluster's head may be lost."""

    def __init__(
        self,
        hub: Hub,
        learner: Learner,
        source: HubSource,
        weights: WeightWriter,
        sent: RayWeights,
        cluster: Cluster,
        reservation: Reservation,
        timeout: float,
    ) -> None:
        super().__init__(hub, learner, source, weights)
        self._cluster, self._reservation, self._sent = cluster, reservation, sent
        if isinstance(hub.store, ShardedStore):
            hub.store.last_saved = lambda: self.last_saved()
        cluster.watch(timeout, self._head_lost)

    def _head_lost(self, head: str) -> None:
        self.hub.failure = RunFailedError(f"the head of the Ray cluster at {head} does not answer")

    def drain_metrics(self) -> dict[str, Any]:
        nodes = {} if self._cluster.lost else {"ray/nodes": len(self._cluster.nodes())}
        return {**super().drain_metrics(), **nodes, "ray/weights_put": self._sent.puts}

    def close(self) -> None:
        if self._cluster.lost:
            self.hub.halt()  # nobody is left who could be told
        else:
            self.hub.stop()
            self._reservation.release()
        self._cluster.close()
