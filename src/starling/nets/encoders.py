"""Encoders of one leaf of an observation (or an action) as a float vector: flat, one-hot, or convolutional."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from starling.errors import UserError
from starling.nets.layers import Activation, conv_norm
from starling.types import Tensor

SMALLEST_IMAGE = 8
"""Minimum side of a two-dimensional uint8 Box to be treated as an image, not as a stack of vectors such as RAM."""


COLORS = (1, 3, 4)
"""Possible channels of a frame in a stack: gray, RGB, or RGBA."""

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by the number of bytes."""


@dataclass(frozen=True)
class ImageShape:
    """Channels, height, and width of an image, and its channel axis (None: it has no such axis).

    A stack of frames is one image with the channels of all frames, oldest first.
    """

    channels: int
    height: int
    width: int
    axis: int | None

    @property
    def side(self) -> int:
        return min(self.height, self.width)


def image_shape(space: spaces.Box) -> ImageShape:
    """Infer the layout of an image; the channel axis is the shorter of the first and the last.

    With four axes, the first is the number of stacked frames: [n, H, W, C] or [n, C, H, W].
    """
    if len(space.shape) == 2:
        return ImageShape(1, *space.shape, axis=None)
    if len(space.shape) == 4 and _is_stack(space.shape):
        n, *frame = space.shape
        shape = _three_axes(*frame)
        return replace(shape, channels=n * shape.channels)
    if len(space.shape) != 3:
        raise UserError(
            f"an image has 2 or 3 axes, or 4 as a stack of gray or color frames, not {space.shape};"
            " reshape it with a wrapper, or use torso.kind=mlp to flatten it"
        )
    return _three_axes(*space.shape)


def _three_axes(first: int, middle: int, last: int) -> ImageShape:
    return ImageShape(first, middle, last, axis=0) if first <= last else ImageShape(last, first, middle, axis=-1)


def _is_stack(shape: Sequence[int]) -> bool:
    """Return True if four axes are a stack of image frames."""
    _, *frame = shape
    read = _three_axes(*frame)
    return read.channels in COLORS and read.side >= SMALLEST_IMAGE


def is_image(space: spaces.Space[Any]) -> bool:
    """Return True for a Box with three axes, a stack of gray or color frames, or uint8 values in two or more axes."""
    if not isinstance(space, spaces.Box):
        return False
    is_byte = space.dtype == np.uint8
    if len(space.shape) == 2:
        return is_byte and min(space.shape) >= SMALLEST_IMAGE
    if len(space.shape) == 4 and _is_stack(space.shape):
        return True
    return len(space.shape) == 3 or (len(space.shape) > 3 and is_byte)


def byte_scale(space: spaces.Space[Any]) -> float | None:
    """Factor that scales uint8 values to [0, 1]; None if no scaling is needed."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    high = float(space.high.max())
    return 1.0 / high if high > 1.0 else None


class Flat(nn.Module):
    """Flatten a Box or MultiBinary: [..., *shape] to [..., size]."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        super().__init__()
        self.axes = len(space.shape)
        self.size = math.prod(space.shape)
        self.scale = byte_scale(space)

    def forward(self, x: Tensor) -> Tensor:
        if self.axes != 1:
            x = x.reshape(*x.shape[: x.dim() - self.axes], self.size)
        x = x.float()
        return x if self.scale is None else x * self.scale


class OneHot(nn.Module):
    """Encode a Discrete or MultiDiscrete as concatenated one-hot vectors: [..., *shape] to [..., size]."""

    column: Tensor
    value: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        counts = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).ravel()
        starts = np.broadcast_to(np.asarray(space.start).ravel(), counts.shape)
        values = [np.arange(n) + start for n, start in zip(counts, starts, strict=True)]
        self.axes = 0 if isinstance(space, spaces.Discrete) else space.nvec.ndim
        self.size = int(counts.sum())
        # Output i is 1 if component `column[i]` has the value `value[i]`.
        column = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        self.register_buffer("column", column, persistent=False)  # [size]
        self.register_buffer("value", torch.from_numpy(np.concatenate(values)), persistent=False)  # [size]

    def forward(self, x: Tensor) -> Tensor:
        if self.axes == 0:
            return (x.unsqueeze(-1) == self.value).float()
        flat = x.reshape(*x.shape[: x.dim() - self.axes], -1)
        return (flat.index_select(-1, self.column) == self.value).float()


class Image(nn.Module):
    """Apply convolutions to images [N, C, H, W], [N, H, W, C], or [N, H, W], uint8 or float: to [N, size].

    Stacks of frames, [N, n, H, W, C] or [N, n, C, H, W], become images with n * C channels.
    """

    def __init__(self, space: spaces.Box, convs: Callable[[ImageShape], nn.Sequential]) -> None:
        super().__init__()
        shape = image_shape(space)
        self.axis = shape.axis
        self.is_stack = len(space.shape) == 4
        self.scale = byte_scale(space)
        self.channels_last = True
        self.convs = convs(shape)
        self.blocks = block_side(self.convs[0], shape)
        self.size = convolved_size(self.convs, shape)

    def forward(self, x: Tensor) -> Tensor:
        if self.axis is None:
            x = x.unsqueeze(1)
        elif self.axis == -1:
            x = x.movedim(-1, -3)
        if self.is_stack:
            x = x.flatten(1, 2)
        return self._convolve(x).flatten(1)

    def _convolve(self, x: Tensor) -> Tensor:
        """Apply the convolutions; scales the first kernels instead of the pixels, which are a thousand times more."""
        first, *rest = self.convs
        assert isinstance(first, nn.Conv2d)
        kernels = first.weight if self.scale is None else first.weight * self.scale
        if (word := self._word(x)) is not None:
            x = functional.conv2d(pixel_blocks(x, word), kernel_blocks(kernels, word.itemsize), first.bias)
        else:
            x = functional.conv2d(self._floats(x), kernels, first.bias, first.stride, first.padding)
        for layer in rest:
            x = layer(x)
        return x

    def _word(self, x: Tensor) -> torch.dtype | None:
        """The integer type as wide as the stride of the first convolution, if that is to be computed on blocks."""
        if x.device.type != "cpu" or x.dtype != torch.uint8 or torch.compiler.is_compiling():
            return None
        if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:  # no faster there
            return None
        word = WORDS.get(self.blocks)
        fits = word is not None and x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]
        aligned = fits and all(n % self.blocks == 0 for n in (x.shape[-1], x.storage_offset(), *x.stride()[:2]))
        return word if aligned else None

    def _floats(self, x: Tensor) -> Tensor:
        # On a CPU, channels-last speeds up the gradient of the first kernels (benchmarks/cnn_cpu.py) but slows down the
        # forward pass. Only the input is converted, so weights stay contiguous.
        last = self.channels_last and torch.is_grad_enabled() and x.device.type == "cpu"
        whole = x.stride()[-2:] == (x.shape[-1], 1)  # channels may be strided: stacks in replay share frames
        if last and x.dtype == torch.uint8 and whole and not torch.compiler.is_compiling():
            from starling.nets.pixels import channels_last_floats  # loads numba only if needed

            return channels_last_floats(x)
        return x.to(torch.float32, memory_format=torch.channels_last if last else torch.contiguous_format)


def block_side(layer: nn.Module, shape: ImageShape) -> int:
    """Side of the pixel blocks on which a convolution has stride 1; 0 if kernels or images are not made of them."""
    assert isinstance(layer, nn.Conv2d)
    side, other = _pair(layer.stride)
    sizes = (*_pair(layer.kernel_size), shape.height, shape.width)
    plain = side == other and _pair(layer.padding) == (0, 0) and layer.groups == 1 and _pair(layer.dilation) == (1, 1)
    return side if plain and all(size % side == 0 for size in sizes) else 0


def pixel_blocks(x: Tensor, word: torch.dtype) -> Tensor:
    """Turn blocks of pixels into channels: [N, C, H, W] uint8 to [N, C * s * s, H / s, W / s] bfloat16, channels last.

    A convolution with stride s is one with stride 1 on blocks of s x s pixels. With 64 channels instead of 4, matrix
    instructions compute it two to three times as fast. Rows of a block are moved as one integer `word` of s bytes.
    """
    n, channels, height, width = x.shape
    side = word.itemsize
    words = x.view(word).view(n, channels, height // side, side, width // side)
    blocks = words.permute(0, 2, 4, 1, 3).contiguous().view(torch.uint8)  # [N, H / s, W / s, C, s * s]
    return blocks.view(n, height // side, width // side, -1).to(torch.bfloat16).permute(0, 3, 1, 2)


def kernel_blocks(kernels: Tensor, side: int) -> Tensor:
    """The kernels [O, C, K, L] for the blocks of `pixel_blocks`: [O, C * s * s, K / s, L / s]."""
    outputs, channels, height, width = kernels.shape
    blocks = kernels.view(outputs, channels, height // side, side, width // side, side)
    return blocks.permute(0, 1, 3, 5, 2, 4).reshape(outputs, -1, height // side, width // side)


def convolved_size(convs: nn.Sequential, shape: ImageShape) -> int:
    """Number of outputs of a sequence of convolutions and poolings for one image, from their settings alone."""
    channels, sides = shape.channels, [shape.height, shape.width]
    for layer in convs.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = (_pair(value) for value in (layer.kernel_size, layer.stride, layer.padding))
            sides = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, kernel, stride, padding, strict=True)]
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
    return channels * math.prod(sides)


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def plain_convs(
    shape: ImageShape, channels: Sequence[int], kernels: Sequence[int], strides: Sequence[int], act: str, norm: str
) -> nn.Sequential:
    """Convolutions without padding, each followed by an optional norm and the activation."""
    layers: list[nn.Module] = []
    inputs, height, width = shape.channels, shape.height, shape.width
    for i, (outputs, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True), start=1):
        if kernel > min(height, width):
            raise UserError(
                f"the kernel of convolution {i} ({kernel}x{kernel}) is larger than its input ({height}x{width}) for"
                f" images of {shape.height}x{shape.width}; use torso.kind=cnn with smaller or fewer torso.kernels,"
                " or torso.kind=mlp"
            )
        layers += [nn.Conv2d(inputs, outputs, kernel, stride), *conv_norm(norm, outputs), Activation(act)]
        inputs, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Residual block: x + two convolutions of x, each preceded by the activation: [N, C, H, W] to the same shape."""

    def __init__(self, channels: int, act: str, norm: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            Activation(act, keep=True),  # not in place: `forward` adds x
            nn.Conv2d(channels, channels, 3, padding=1),
            *conv_norm(norm, channels),
            Activation(act),
            nn.Conv2d(channels, channels, 3, padding=1),
            *conv_norm(norm, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return x + inner


def impala_convs(shape: ImageShape, channels: Sequence[int], act: str, norm: str) -> nn.Sequential:
    """IMPALA's deep network (1802.01561, figure 3): each stage is a convolution, a pooling, and two residual blocks."""
    layers: list[nn.Module] = []
    inputs = shape.channels
    for outputs in channels:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *conv_norm(norm, outputs)]
        layers += [nn.MaxPool2d(3, stride=2, padding=1), Residual(outputs, act, norm), Residual(outputs, act, norm)]
        inputs = outputs
    return nn.Sequential(*layers, Activation(act))


def build_encoder(
    path: str, space: spaces.Space[Any], convs: Callable[[ImageShape], nn.Sequential] | None
) -> Flat | OneHot | Image:
    """Build the encoder of one leaf; images use `convs` if given."""
    if isinstance(space, spaces.Box):
        return Image(space, convs) if convs is not None and is_image(space) else Flat(space)
    if isinstance(space, spaces.MultiBinary):
        return Flat(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHot(space)
    raise UserError(
        f"{path} has the space {space}, which no network here supports; use Box, Discrete, MultiDiscrete, MultiBinary,"
        " Dict or Tuple, or your own torso as torso.kind=package.module:Class"
    )
