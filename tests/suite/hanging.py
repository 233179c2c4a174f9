"""Tests that hang on purpose; pytest does not collect them, `test_timeouts.py` runs them."""

import ctypes
import threading

import pytest


def wait_in_a_thread():
    threading.Event().wait()


@pytest.fixture
def hangs_in_teardown():
    yield
    lock_twice()


def lock_twice():
    """Wait in C for a mutex that nobody unlocks while holding the GIL: this process runs no more Python code."""
    mutex = ctypes.create_string_buffer(128)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def test_that_waits_for_a_thread():
    thread = threading.Thread(target=wait_in_a_thread, daemon=True)
    thread.start()
    thread.join()


def test_that_waits_in_c():
    lock_twice()


def test_that_fails_and_then_waits_in_teardown(hangs_in_teardown):
    raise AssertionError("on purpose")


def test_that_leaves_a_thread_behind():
    threading.Thread(target=wait_in_a_thread).start()


def test_that_passes():
    pass
