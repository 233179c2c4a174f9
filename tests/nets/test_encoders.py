"""The first convolution on blocks of pixels equals the usual one."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling.nets.encoders import Image, plain_convs


def make(shape, kernels=(8, 4), strides=(4, 2)):
    space = spaces.Box(0, 255, shape, np.uint8)
    torch.manual_seed(0)
    return Image(
        space, partial(plain_convs, channels=(16, 8), kernels=kernels, strides=strides, act="relu", norm="none")
    )


def outputs_and_gradients(encoder, x, *, blocks):
    """Result [N, F] and gradients in bfloat16, on blocks or not."""
    side, encoder.blocks = encoder.blocks, encoder.blocks if blocks else 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (encoder._word(x) is not None) == blocks
        y = encoder(x)
    encoder.blocks = side
    return y, torch.autograd.grad(y.float().square().sum(), list(encoder.parameters()))


def assert_blocks_change_nothing(encoder, x):
    """Products of bfloat16 are added up in float32, so that the order of additions is all that may differ."""
    plain, gradients = outputs_and_gradients(encoder, x, blocks=False)
    fast, fast_gradients = outputs_and_gradients(encoder, x, blocks=True)
    torch.testing.assert_close(fast, plain, rtol=0.02, atol=1e-3)
    for mine, theirs in zip(fast_gradients, gradients, strict=True):
        assert (mine - theirs).norm() <= 0.01 * theirs.norm()


@pytest.mark.parametrize(
    ("shape", "kernels", "strides"),
    [((4, 84, 84), (8, 4), (4, 2)), ((3, 40, 64), (8, 3), (8, 1)), ((1, 24, 20), (4, 3), (2, 2))],
)
def test_blocks_of_pixels_change_nothing_but_speed(shape, kernels, strides):
    encoder = make(shape, kernels, strides)
    assert encoder.blocks == strides[0]
    x = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    assert_blocks_change_nothing(encoder, x)


def test_stacks_that_share_frames_are_read_where_they_are():
    frames = torch.randint(0, 256, (11, 84, 84), dtype=torch.uint8)
    stacks = frames[1:].unfold(0, 4, 1).permute(0, 3, 1, 2)  # [7, 4, 84, 84]
    assert not stacks.is_contiguous()
    assert_blocks_change_nothing(make((4, 84, 84)), stacks)


@pytest.mark.parametrize(
    ("shape", "kernels", "strides"),
    [((4, 84, 84), (6, 4), (4, 2)), ((4, 85, 84), (8, 4), (4, 2)), ((3, 63, 63), (9, 3), (3, 1))],
)
def test_sizes_without_whole_blocks_are_convolved_as_usual(shape, kernels, strides):
    encoder = make(shape, kernels, strides)
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder._word(x) is None
        assert encoder(x).shape == (2, encoder.size)


def test_memory_that_words_do_not_fit_is_convolved_as_usual():
    encoder = make((4, 84, 84))
    odd = torch.randint(0, 256, (2 * 4 * 84 * 84 + 1,), dtype=torch.uint8)[1:].view(2, 4, 84, 84)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder._word(odd) is None
        assert torch.equal(encoder(odd), outputs_and_gradients(encoder, odd.clone(), blocks=False)[0])


def test_float32_has_no_blocks():
    x = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    encoder = make((4, 84, 84))
    assert encoder._word(x) is None
