"""One torch thread: two workers share two cores, and most networks here are tiny."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
