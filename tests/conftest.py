"""One torch thread: two workers share two cores, and most networks here are tiny; every test finds torch as it was."""

import pytest
import torch

from starling.cli.main import app
from starling.runtime.ray import token


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def ray_token(tmp_path_factory):
    """The token of every Ray that this process meets: Ray reads it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(token.PATH, str(tmp_path_factory.mktemp("ray") / "token"))
        patch.delenv(token.MODE, raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # or Ray's workers yield to the other tests
        token.ensure_token()
        yield


@pytest.fixture(scope="session")
def ray_here(ray_token):
    """A Ray of this process's own, for all tests of the session."""
    import ray

    _start_ray(ray)
    yield
    ray.shutdown()


def _start_ray(ray, tries=6):
    """Ray gives itself 30 s to start, which a busy machine may not have."""
    try:
        ray.init("local", num_cpus=16, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
    except Exception as error:
        if tries == 1 or "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        _start_ray(ray, tries - 1)


@pytest.fixture(scope="session")
def made_when_asked():
    """`made_when_asked(root, runs)(name)`: the folder of a run, trained with what `runs` says when first asked for."""

    def among(root, runs):
        def run(name):
            if not (root / name).exists():
                app(["train", *runs[name], f"run={name}", f"--runs={root}"], standalone_mode=False)
                torch.set_num_threads(1)
                torch.set_flush_denormal(False)
            return root / name

        return run

    return among
