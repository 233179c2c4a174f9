"""With this suite's settings, a test that hangs is reported with its stacks and the remaining tests run."""

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = Path(__file__).parent / "hanging.py"
ROOT = Path(__file__).parents[2]


def run_pytest(*names, workers=0):
    """Run some of the hanging tests with a limit of two seconds; returns the exit code and the output."""
    tests = [f"{HANGING}::{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--timeout", "2", "-rA", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_hanging_test_fails_with_the_stacks_of_all_threads():
    code, output = run_pytest("test_that_waits_for_a_thread", "test_that_passes")
    assert code == 1
    assert "Timeout (>2.0s) from pytest-timeout" in output
    assert "thread.join()" in output, "the main thread"
    assert "in wait_in_a_thread" in output, "the other thread"
    assert "1 failed, 1 passed" in output


@pytest.mark.slow
def test_uninterruptible_test_ends_the_process_with_its_stack():
    code, output = run_pytest("test_that_waits_in_c")
    assert code == 1
    assert "Timeout (0:00:02" in output
    assert "in lock_twice" in output


@pytest.mark.slow
def test_hung_xdist_worker_is_replaced_and_the_other_tests_run():
    crashing = ["test_that_waits_in_c", "test_that_fails_and_then_waits_in_teardown"]
    code, output = run_pytest("test_that_waits_for_a_thread", *crashing, "test_that_passes", workers=1)
    assert code == 1
    assert "Timeout (>2.0s) from pytest-timeout" in output
    assert "in wait_in_a_thread" in output
    assert output.count("in lock_twice") >= 2, "the stacks of both"
    for name in crashing:
        assert f"crashed while running 'tests/suite/hanging.py::{name}'" in output
    assert "PASSED tests/suite/hanging.py::test_that_passes" in output


@pytest.mark.slow
def test_thread_left_running_does_not_keep_the_process_alive():
    code, output = run_pytest("test_that_leaves_a_thread_behind")
    assert code == 1
    assert "1 passed" in output
    assert "in wait_in_a_thread" in output
