"""Runs whose actors, evaluator and, if wanted, learners are in a Ray cluster."""

from __future__ import annotations

from typing import Any

from starling.roles.learner import Learner
from starling.runtime.hub import Hub
from starling.runtime.learners import LearnersRuntime
from starling.runtime.processes import HubSource, ProcessesRuntime
from starling.runtime.ray.sharded import ShardedStore
from starling.runtime.ray.tenancy import Tenancy
from starling.runtime.weights import WeightWriter


class RayRuntime(ProcessesRuntime):
    """As over processes, only that workers are far away and the cluster's head may be lost."""

    def __init__(self, tenancy: Tenancy, hub: Hub, learner: Learner, source: HubSource, weights: WeightWriter) -> None:
        super().__init__(hub, learner, source, weights)
        self._tenancy = tenancy
        if isinstance(hub.store, ShardedStore):
            hub.store.last_saved = lambda: self.last_saved()
        tenancy.begin([hub])

    def drain_metrics(self) -> dict[str, Any]:
        return super().drain_metrics() | self._tenancy.metrics()

    def close(self) -> None:
        self._tenancy.before_end()
        super().close()
        self._tenancy.end()


class RayLearnersRuntime(LearnersRuntime):
    """Several learners, on this machine or in the cluster, whose actors are in the cluster."""

    def __init__(self, tenancy: Tenancy, *parts: Any) -> None:
        super().__init__(*parts)
        self._tenancy = tenancy
        tenancy.begin(self.hubs)

    def drain_metrics(self) -> dict[str, Any]:
        return super().drain_metrics() | self._tenancy.metrics()

    def close(self) -> None:
        self._tenancy.before_end()
        super().close()
        self._tenancy.end()
