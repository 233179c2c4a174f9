"""The driver's side of a sharded replay: nothing in the hub's thread waits for a shard."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.driving import TIMEOUT

from starling.config.cluster import PlaceConfig
from starling.config.load import load
from starling.config.schema import SupervisionConfig
from starling.replay.spec import TableSpec
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.ray.placement import Place, need
from starling.runtime.ray.remote_shard import RemoteShard
from starling.runtime.ray.remote_store import ShardedStore
from starling.runtime.worker import WorkerSpec

TABLE = TableSpec(name="replay", storage="ring", length=1, batch=8, capacity=200, fragment=4, min_size=8)


def shard(answer, requested, release):
    """A shard that answers with its state once `release` is set."""

    def request_state():
        requested.append(answer)
        return None if answer is None else SimpleNamespace(wait=lambda: release.wait(TIMEOUT) and answer)

    return SimpleNamespace(request_state=request_state, running=False, holds=SimpleNamespace(sizes=(), metrics={}))


def test_hub_goes_on_while_the_states_of_all_shards_are_awaited():
    requested, release = [], threading.Event()
    store = ShardedStore([TABLE], 4)
    store.shards = [shard({"tables": i}, requested, release) for i in range(2)] + [shard(None, requested, release)]
    store.set_state({"env_steps": 7, "limiter": store.limiter.get_state(), "parts": {"2": {"tables": "saved"}}})
    store._inserting = {"nobody": []}
    hub = Hub(store, EventQueue(), [], {}, SupervisionConfig(), 0, None)
    hub.start()
    try:
        states = []
        saving = threading.Thread(target=lambda: states.append(hub.tables_state(True)))
        saving.start()
        while len(requested) < 3:
            assert hub.call(threading.current_thread).name == "hub"
        assert saving.is_alive()
        release.set()
        saving.join(TIMEOUT)
        assert states[0]["parts"] == {"0": {"tables": 0}, "1": {"tables": 1}, "2": {"tables": "saved"}}
        assert states[0]["env_steps"] == 7
    finally:
        release.set()
        hub.stop()


def make_shard(saved, events):
    spec = WorkerSpec("shard 0", "shard", None)
    group = SimpleNamespace(id=SimpleNamespace(hex=lambda: "0" * 8))
    place = Place(need("shard 0", (PlaceConfig(), 1)), group, 0)
    return RemoteShard(spec, load("dqn-cartpole", []), place, events.post, np.arange(4), saved)


def test_saved_state_of_a_shard_is_read_outside_the_hubs_thread(monkeypatch):
    reading, release, events, created = threading.Event(), threading.Event(), EventQueue(), []

    def saved():
        reading.set()
        release.wait(TIMEOUT)
        return {"tables": 5}

    restored = make_shard(saved, events)
    monkeypatch.setattr(restored, "_create", lambda incarnations, options: created.append(restored._state))
    monkeypatch.setattr(restored, "_began", lambda line: None)
    restored.start({}, lambda: None, lambda: None)
    assert reading.wait(TIMEOUT)
    assert restored.start_at is None, "it is not started a second time meanwhile"
    assert not restored.running
    release.set()
    while not created:
        events.run(events.wait(TIMEOUT))
    assert created == [{"tables": 5}]
    assert restored.running


def test_saved_state_that_cannot_be_read_fails_the_run():
    events = EventQueue()

    def saved():
        raise OSError("the disk is gone")

    make_shard(saved, events).start({}, lambda: None, lambda: None)
    assert events.wait(TIMEOUT)
    with pytest.raises(OSError, match="the disk is gone"):
        events.run([])
