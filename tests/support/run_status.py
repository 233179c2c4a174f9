"""Statuses of runs that are not there."""

from dataclasses import replace

from starling.runtime.status import HubStatus, RuntimeStatus, WorkerStatus


def worker(name="actor 0", **fields):
    return WorkerStatus(**{"name": name, "kind": name.split()[0], "node": None, "state": "running", **fields})


def runtime_status(*workers, **hub):
    fields = {
        **{"rank": 0, "silent_seconds": 0.1, "requests": 0, "batches_ready": 1, "batches_scored": 0, "lent": 3},
        **{"free": 1, "acting_waits": None, "learning_waits": None},
        **hub,
    }
    return RuntimeStatus(1234, 56, 0.5, 1000, [replace(HubStatus(**fields), workers=list(workers))])
