"""One torch thread: two workers share two cores, and most networks here are tiny; every test finds torch as it was."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
