"""Calls from other threads into the hub's thread."""

import threading
import time
from types import SimpleNamespace

import pytest
from support.driving import TIMEOUT

from starling.config.schema import SupervisionConfig
from starling.runtime.event_queue import EventQueue
from starling.runtime.hub import Hub
from starling.runtime.supervisor import RunFailedError


@pytest.fixture
def hub():
    """A hub without workers, whose store has no batches."""
    store = SimpleNamespace(begin=lambda num_envs: False, take_back=lambda num_envs: None, draw_candidates=lambda: None)
    hub = Hub(store, EventQueue(), [], {}, SupervisionConfig(), 1, None)
    yield hub
    hub.stop()


def fail_soon(hub):
    threading.Timer(0.1, hub.fail, [RunFailedError("nobody answers")]).start()


def test_call_runs_in_the_hubs_thread_and_returns_or_raises(hub):
    assert hub.call(threading.current_thread) is threading.current_thread(), "not started yet"
    hub.start()
    assert hub.call(threading.current_thread).name == "hub"
    with pytest.raises(ZeroDivisionError):
        hub.call(lambda: 1 // 0)


def test_call_that_a_stuck_hub_did_not_answer_runs_once(hub):
    release, calls = threading.Event(), []
    hub.start()
    hub.post(lambda: release.wait(TIMEOUT))
    fail_soon(hub)
    hub.call(lambda: calls.append(threading.current_thread().name))
    release.set()
    handled = threading.Event()
    hub.post(handled.set)
    assert handled.wait(TIMEOUT)
    assert calls == [threading.current_thread().name]


def test_call_in_which_the_hub_is_stuck_runs_in_the_callers_thread_too(hub):
    release, names = threading.Event(), []

    def function():
        names.append(threading.current_thread().name)
        if names == ["hub"]:
            release.wait(TIMEOUT)
        return len(names)

    hub.start()
    fail_soon(hub)
    began = time.monotonic()
    assert hub.call(function) == 2
    assert time.monotonic() - began < TIMEOUT / 2
    assert names == ["hub", threading.current_thread().name]
    release.set()
