"""Ray clusters for tests: small, without a dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE = 100 * 2**20
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


@contextmanager
def cluster(*nodes: dict[str, Any]) -> Iterator[Any]:
    """A head without CPUs and so many nodes, each a raylet of its own; this process does not connect to it."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": QUICK}
    made = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        for node in nodes:
            made.add_node(object_store_memory=STORE, wait=True, **node)
        yield made
    finally:
        made.shutdown()
