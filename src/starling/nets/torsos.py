"""Torsos: observations [N, ...] to features [N, F], chosen by name or as `package.module:Class`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from starling.config.parts import TorsoConfig
from starling.errors import UserError
from starling.nets.encoders import ImageShape, build_encoder, image_shape, impala_convs, is_image, plain_convs
from starling.nets.layers import Dense
from starling.registry import Entry, Registry, check_arguments, check_kind
from starling.types import Tensor, Tree

Convs = Callable[[ImageShape], nn.Sequential]
Path = tuple[str | int, ...]

SMALLEST_NATURE = 36
"""Smallest image side for the Nature network: its output is then a single pixel."""


def space_leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """Yield every leaf of nested Dict and Tuple spaces with its path of keys."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, child in children:
            yield from space_leaves(child, (*path, key))
    else:
        yield path, space


def _pick(tree: Tree, path: Path) -> Tensor:
    for key in path:
        tree = tree[key]
    leaf: Tensor = tree
    return leaf


class Torso(nn.Module):
    """Encode every leaf (images with `convs`), concatenate, and apply dense layers: [N, ...] to [N, size]."""

    def __init__(
        self, space: spaces.Space[Any], convs: Convs | None, hidden: Sequence[int], activation: str, norm: str
    ) -> None:
        super().__init__()
        leaves = list(space_leaves(space))
        if not leaves:
            raise UserError(f"the observation space {space} has no leaves: there is nothing to learn from")
        named = [("/".join(map(str, ("observation", *path))), leaf) for path, leaf in leaves]
        self.paths = tuple(path for path, _ in leaves)
        encoders = [build_encoder(name, leaf, convs) for name, leaf in named]
        joined = sum(encoder.size for encoder in encoders)
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(joined, hidden, activation, norm)
        self.size = self.dense.size

    def forward(self, obs: Tree) -> Tensor:
        parts = [encode(_pick(obs, path)) for path, encode in zip(self.paths, self.encoders, strict=True)]
        features: Tensor = self.dense(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
        return features


def _images(space: spaces.Space[Any]) -> list[spaces.Box]:
    return [leaf for _, leaf in space_leaves(space) if isinstance(leaf, spaces.Box) and is_image(leaf)]


def _with_images(kind: str, space: spaces.Space[Any], convs: Convs, *dense_args: Any) -> Torso:
    if not _images(space):
        shown = " ".join(str(space).split())  # the repr of a Box may have several lines
        raise UserError(f"net.torso.kind={kind} needs an image, and {shown} has none; use net.torso.kind=mlp or auto")
    return Torso(space, convs, *dense_args)


def _refuse_no_layers(kind: str, channels: Sequence[int]) -> None:
    if not channels:
        raise UserError(f"net.torso.kind={kind} needs at least one entry in channels; use net.torso.kind=mlp for none")


def mlp(
    space: spaces.Space[Any], hidden: Sequence[int] = (64, 64), activation: str = "relu", norm: str = "none"
) -> Torso:
    """Dense layers over all leaves; images are flattened."""
    return Torso(space, None, hidden, activation, norm)


def nature(
    space: spaces.Space[Any], hidden: Sequence[int] = (512,), activation: str = "relu", norm: str = "none"
) -> Torso:
    """The convolutions of DQN (Mnih 2015): 32 8x8 stride 4, 64 4x4 stride 2, 64 3x3 stride 1."""
    convs = partial(plain_convs, channels=(32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1), act=activation, norm=norm)
    return _with_images("nature", space, convs, hidden, activation, norm)


def impala(
    space: spaces.Space[Any],
    channels: Sequence[int] = (16, 32, 32),
    hidden: Sequence[int] = (256,),
    activation: str = "relu",
    norm: str = "none",
) -> Torso:
    """The residual network of IMPALA (1802.01561), one stage per entry of `channels`."""
    _refuse_no_layers("impala", channels)
    convs = partial(impala_convs, channels=channels, act=activation, norm=norm)
    return _with_images("impala", space, convs, hidden, activation, norm)


def cnn(
    space: spaces.Space[Any],
    channels: Sequence[int] = (16, 32, 32),
    kernels: Sequence[int] = (3, 3, 3),
    strides: Sequence[int] = (1, 1, 1),
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
    norm: str = "none",
) -> Torso:
    """Plain convolutions for small images, one layer per entry of `channels`, `kernels`, and `strides`."""
    _refuse_no_layers("cnn", channels)
    if not len(channels) == len(kernels) == len(strides):
        raise UserError(
            f"torso.channels, kernels, and strides must have equal lengths, not {len(channels)}, {len(kernels)} and"
            f" {len(strides)}: one entry per layer"
        )
    convs = partial(plain_convs, channels=channels, kernels=kernels, strides=strides, act=activation, norm=norm)
    return _with_images("cnn", space, convs, hidden, activation, norm)


TORSOS = Registry(
    "torso",
    {
        "mlp": Entry(mlp, "dense layers"),
        "nature": Entry(nature, "the convolutions of DQN, for images of 36 pixels and more"),
        "impala": Entry(impala, "IMPALA's residual convolutions, for images"),
        "cnn": Entry(cnn, "plain convolutions of your choice, for small images"),
    },
)

_FIELDS: dict[str, tuple[str, ...]] = {
    "mlp": (),
    "nature": (),
    "impala": ("channels",),
    "cnn": ("channels", "kernels", "strides"),
}
"""Fields of the configuration that each built-in torso takes besides `hidden`, `activation`, and `norm`."""


def automatic(space: spaces.Space[Any]) -> str:
    """Resolve `auto`: mlp without images, nature if all images are large enough, else cnn."""
    images = _images(space)
    if not images:
        return "mlp"
    return "nature" if min(image_shape(image).side for image in images) >= SMALLEST_NATURE else "cnn"


def build_torso(space: spaces.Space[Any], config: TorsoConfig) -> nn.Module:
    """Build the torso that `config` names; a user's own class is constructed with (space, **args) and needs `size`."""
    kind = automatic(space) if config.kind == "auto" else config.kind
    factory = TORSOS.load(kind)
    if kind not in _FIELDS:
        return _own(kind, factory, space, config.args)
    if config.args:
        raise UserError(f"torso.args are for a class of your own; torso.kind={kind} takes hidden, activation and norm")
    args = {name: getattr(config, name) for name in ("activation", "norm", *_FIELDS[kind])}
    if config.hidden is not None:
        args["hidden"] = config.hidden
    torso: nn.Module = factory(space, **args)
    return torso


def _own(kind: str, factory: Any, space: spaces.Space[Any], args: dict[str, Any]) -> nn.Module:
    check_kind(factory, kind, "torso", (nn.Module,))
    check_arguments(factory, f"torso {kind}", "(space, **torso.args)", space, **args)
    torso = factory(space, **args)
    if not isinstance(torso, nn.Module) or not isinstance(getattr(torso, "size", None), int):
        raise UserError(f"torso {kind} must be a torch.nn.Module with an int attribute `size`, the width of its output")
    return torso
