"""The quick way from bytes to floats gives what torch gives, to the bit."""

import pytest
import torch

from starling.nets.pixels import channels_last_floats


@pytest.mark.parametrize("shape", [(3, 4, 7, 5), (1, 1, 1, 1), (2, 3, 84, 84), (5, 12, 9, 2), (0, 4, 5, 5)])
def test_same_as_torch_to_the_bit(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fast = channels_last_floats(x)
    assert torch.equal(fast, x.float())
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert fast.dtype == torch.float32


@pytest.mark.parametrize("channels", [4, 3])
def test_views_of_shared_frames(channels):
    """Stacks that overlap in memory and begin somewhere inside it, as a replay hands them out."""
    frames = torch.randint(0, 256, (10, 6, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    stacks = frames.as_strided((5, channels, 6, 7), (42, 42, 7, 1), storage_offset=2 * 42)
    assert torch.equal(channels_last_floats(stacks), stacks.contiguous().float())
