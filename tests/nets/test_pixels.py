"""The fast conversion of bytes to floats is bitwise equal to torch's."""

import pytest
import torch

from starling.nets.pixels import channels_last_floats


@pytest.mark.parametrize("shape", [(3, 4, 7, 5), (1, 1, 1, 1), (2, 3, 84, 84), (5, 12, 9, 2), (0, 4, 5, 5)])
def test_conversion_is_bitwise_equal_to_torch(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fast = channels_last_floats(x)
    assert torch.equal(fast, x.float())
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert fast.dtype == torch.float32


@pytest.mark.parametrize("channels", [4, 3])
def test_overlapping_frame_stacks_are_converted(channels):
    """Stacks that share memory and start inside a storage, as returned by replay."""
    frames = torch.randint(0, 256, (10, 6, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    stacks = frames.as_strided((5, channels, 6, 7), (42, 42, 7, 1), storage_offset=2 * 42)
    assert torch.equal(channels_last_floats(stacks), stacks.contiguous().float())
