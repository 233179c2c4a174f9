"""One torch thread: two workers share two cores, and most networks here are tiny; every test finds torch as it was."""

import pytest
import torch

from starling.cli.main import app


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)


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
