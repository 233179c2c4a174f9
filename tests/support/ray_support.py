"""Small Ray clusters for tests, without a dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from starling.runtime.ray.token import MODE

STORE = 100 * 2**20
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


@contextmanager
def cluster(first: dict[str, Any], *others: dict[str, Any]) -> Iterator[Any]:
    """A cluster with a head, which is the first node, and other nodes, each with its own raylet.

    This process does not connect to it. The cluster requires the token, as do processes started meanwhile, unless the
    environment says otherwise.
    """
    from ray.cluster_utils import Cluster

    disabled = {
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
    }  # head processes that tests do not need
    head = {"object_store_memory": STORE, "_system_config": QUICK, **disabled, **first}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODE, os.environ.get(MODE, "token"))
        ray_cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        try:
            for node in others:
                ray_cluster.add_node(object_store_memory=STORE, wait=True, **node)
            yield ray_cluster
        finally:
            ray_cluster.shutdown()
