"""The start of a Ray of the run's own, on a machine that is too busy for it."""

import os
import subprocess
import sys

import pytest

from starling.errors import UserError
from starling.runtime.ray import cluster
from starling.runtime.ray.token import MODE, PATH

BUSY = "The current node timed out during startup. This could happen because ..."


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """Replaces `ray.init` by failures of these texts, each with a process left behind, and then by a success."""
    monkeypatch.setenv(PATH, str(tmp_path / "token"))
    monkeypatch.setenv(MODE, os.environ.get(MODE, "token"))
    failures, left = [], []

    def init(*args, _temp_dir, **kwargs):
        if failures:
            waiting = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)", _temp_dir]
            left.append(subprocess.Popen(waiting, stdout=subprocess.PIPE))
            assert left[-1].stdout.readline()
            raise RuntimeError(failures.pop())

    monkeypatch.setattr(cluster.ray, "init", init)
    yield failures, left
    for process in left:
        process.kill()
        process.communicate()


def test_start_is_tried_again_without_the_processes_of_the_attempt_before(starts, tmp_path):
    failures, left = starts
    failures += [BUSY, BUSY]
    cluster._start(str(tmp_path), [], 10**8)
    assert failures == []
    assert [process.wait(60) for process in left] == [-9, -9]


def test_start_gives_up_in_one_line(starts, tmp_path):
    failures, _ = starts
    failures += [BUSY] * 5
    with pytest.raises(UserError, match="3 attempts"):
        cluster._start(str(tmp_path), [], 10**8)
    assert len(failures) == 2


def test_other_failures_of_a_start_are_not_repeated(starts, tmp_path):
    failures, _ = starts
    failures += ["second", "first"]
    with pytest.raises(RuntimeError, match="first"):
        cluster._start(str(tmp_path), [], 10**8)
