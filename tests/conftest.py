"""Shared fixtures, and the time limits of hanging tests.

Tests use one torch thread: two workers share two cores, and most networks here are tiny.
"""

import faulthandler
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.mock_device import register as register_mock_device

import starling
from starling.cli.main import app
from starling.experiment.run_folder.folder import RunFolder
from starling.runtime.ray import token
from starling.tools.verify import compare

# The shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP; children inherit both.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


register_mock_device()

STDERR, LIMIT = pytest.StashKey[int](), pytest.StashKey[float]()


def pytest_configure(config):
    config.stash[STDERR] = os.dup(2)  # before pytest captures it


def pytest_timeout_set_timer(item, settings):
    """Set a second limit, for tests that the first one (an exception in the main thread) cannot end."""
    item.stash[LIMIT] = 1.25 * settings.timeout


def _exit_if_stuck(item):
    """Dump the stacks of all threads and exit when setup, call, or teardown exceeds the second limit.

    The timer is a C thread that does not need the GIL. xdist reports the test as crashed and starts another worker.
    """
    if limit := item.stash.get(LIMIT, 0.0):
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = pytest.hookimpl(wrapper=True)(_exit_if_stuck)


def pytest_unconfigure(config):
    """Do not wait indefinitely for a thread that a test left running; xdist ends its workers itself."""
    if not hasattr(config, "workerinput"):
        limit = config.getoption("timeout") or float(config.getini("timeout"))
        sys.stdout.flush()
        faulthandler.dump_traceback_later(limit / 4, exit=True, file=config.stash[STDERR])


def pytest_collection_modifyitems(items):
    """Run tests that start Ray first: one worker then runs all of them, and no other worker waits for it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


@pytest.fixture(autouse=True)
def _reset_torch():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session", autouse=True)
def _temporary_trust_key(tmp_path_factory):
    """Use a temporary key for sealing the user's own runs, so that the real one is not touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("STARLING_ALLOW", raising=False)
        yield


@pytest.fixture(scope="session")
def ray_token(tmp_path_factory):
    """The token of every Ray cluster that this process uses: Ray reads it only once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(token.PATH, str(tmp_path_factory.mktemp("ray") / "token"))
        patch.delenv(token.MODE, raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # otherwise Ray's workers yield to the other tests
        token.ensure_token()
        yield


@pytest.fixture(scope="session")
def local_ray(ray_token):
    """A local Ray instance, shared by all tests of the session; its workers import from the folder of the tests."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        _start_ray(ray)
    yield
    ray.shutdown()


def _start_ray(ray, tries=6):
    """Start Ray, trying again on timeouts: its limit of 30 s can be too short on a busy machine."""
    try:
        ray.init("local", num_cpus=16, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    except Exception as error:
        if tries == 1 or "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        _start_ray(ray, tries - 1)


@pytest.fixture
def two_cores(monkeypatch):
    """Measure costs beside one busy process, not beside one per core that STARLING_CORES claims."""
    monkeypatch.setattr("starling.tools.benchmark.costs.cores", lambda: 2)


@pytest.fixture(scope="session")
def train_once():
    """`train_once(root, runs)(name)`: the folder of a run, trained on first use with the arguments `runs[name]`."""

    def trainer(root, runs):
        def run(name):
            if not (root / name).exists():
                assert app(["train", *runs[name], f"run={name}", f"--runs={root}"], standalone_mode=False) == 0
                torch.set_num_threads(1)
                torch.set_flush_denormal(False)
            return root / name

        return run

    return trainer


@pytest.fixture
def read_mp4():
    """`read_mp4(path)`: the metadata of a video and its frames [T, height, width, 3]."""
    import imageio_ffmpeg

    def read(path):
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # the reader leaves its pipes open
            reader = imageio_ffmpeg.read_frames(path)
            metadata, *data = reader
            del reader
        width, height = metadata["size"]
        return metadata, np.frombuffer(b"".join(data), np.uint8).reshape(len(data), height, width, 3)

    return read


@pytest.fixture
def resume_differences(tmp_path):
    """`resume_differences(preset, settings, steps)`: compare an uninterrupted run with an interrupted and resumed one.

    Removing the last checkpoint from a copy gives the state after a kill: metrics rows newer than the checkpoint.
    """

    def differences(preset, settings, steps):
        ends = [f"checkpoint.every={steps}", "checkpoint.exact=true", f"stop.env_steps={2 * steps}", "stop.return=null"]
        whole = RunFolder(starling.train(preset, [*settings, *ends, "run=whole"], runs=tmp_path).folder)
        cut = RunFolder(shutil.copytree(whole.path, tmp_path / "cut"))
        shutil.rmtree(max(cut.checkpoints.glob("step-*")))
        starling.resume(cut.path)
        return compare(whole, cut)

    return differences
