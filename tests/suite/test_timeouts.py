"""A test that hangs is reported with its stacks, and the rest of the suite runs, with the settings of this suite."""

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = Path(__file__).parent / "hanging.py"
ROOT = Path(__file__).parents[2]


def run_pytest(*names, workers=0):
    """Run some of the hanging tests with limits of few seconds: exit code and output."""
    tests = [f"{HANGING}::{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--timeout", "2", "-rA", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_waits_for_a_thread_fails_with_the_stacks_of_all_threads():
    code, output = run_pytest("test_that_waits_for_a_thread", "test_that_passes")
    assert code == 1
    assert "Timeout (>2.0s) from pytest-timeout" in output
    assert "thread.join()" in output, "the main thread"
    assert "in wait_in_a_thread" in output, "the other thread"
    assert "1 failed, 1 passed" in output


@pytest.mark.slow
def test_a_test_that_cannot_be_interrupted_ends_the_process_with_its_stack():
    code, output = run_pytest("test_that_waits_in_c")
    assert code == 1
    assert "Timeout (0:00:02" in output
    assert "in lock_twice" in output


@pytest.mark.slow
def test_a_worker_of_xdist_that_hangs_is_replaced_and_the_other_tests_run():
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
def test_a_thread_that_outlives_the_tests_does_not_keep_the_process():
    code, output = run_pytest("test_that_leaves_a_thread_behind")
    assert code == 1
    assert "1 passed" in output
    assert "in wait_in_a_thread" in output
