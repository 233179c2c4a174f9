"""The quick way from bytes to floats gives what torch gives, to the bit."""

import pytest
import torch

from starling.nets.pixels import channels_last_floats


@pytest.mark.parametrize("shape", [(3, 4, 7, 5), (1, 1, 1, 1), (2, 3, 84, 84), (5, 12, 9, 2)])
def test_same_as_torch_to_the_bit(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    slow = x.to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)
    fast = channels_last_floats(x, 1 / 255)
    assert torch.equal(fast, slow)
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert fast.dtype == torch.float32
