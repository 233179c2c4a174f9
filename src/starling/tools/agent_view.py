"""Show the images in an agent's observation beside the image that the env renders."""

from __future__ import annotations

import math

import numpy as np

from starling import tree
from starling.errors import UserError
from starling.tools.video import as_shown
from starling.types import EnvSpec, NDArray, Tree

GAP = 8
"""Pixels between the two images."""
_GROUND = 24


def images_of(obs: Tree, spec: EnvSpec) -> list[NDArray]:
    """Return the images in an observation [1, ...]: all frames of a stack, the oldest first.

    Raises:
        UserError: the observation has no images.
    """
    for path, leaf in tree.items(obs):
        image = np.asarray(leaf)[0]
        is_stack = spec.stack is not None and spec.stack.path == path
        frames = list(np.moveaxis(image, spec.stack.axis, 0)) if spec.stack is not None and is_stack else [image]
        if image.dtype == np.uint8 and all(_is_image(frame) for frame in frames):
            return frames
    raise UserError(f"the observations of env {spec.id!r} are no images: leave out --view")


def _is_image(frame: NDArray) -> bool:
    return frame.ndim == 2 or (frame.ndim == 3 and frame.shape[-1] in (1, 3, 4))


def beside(picture: NDArray, frames: list[NDArray]) -> NDArray:
    """Return an image [H, W, 3] with the agent's frames, two per row, at its right; both are enlarged to be seen."""
    left = as_shown(picture)
    across = min(2, len(frames))
    framed = [np.pad(_rgb(frame), ((1, 1), (1, 1), (0, 0)), constant_values=_GROUND) for frame in frames]
    filled = framed + [np.full_like(framed[0], _GROUND)] * (-len(frames) % across)
    rows = [np.concatenate(filled[i : i + across], axis=1) for i in range(0, len(filled), across)]
    view = np.concatenate(rows)
    factor = max(1, len(left) // len(view))
    view = view.repeat(factor, axis=0).repeat(factor, axis=1)
    height = max(len(left), len(view))
    gap = np.full((height, GAP, 3), _GROUND, np.uint8)
    return np.concatenate([_padded(left, height), gap, _padded(view, height)], axis=1)


def _rgb(frame: NDArray) -> NDArray:
    deep = frame[..., None] if frame.ndim == 2 else frame
    return deep.repeat(3, axis=-1) if deep.shape[-1] == 1 else deep[..., :3]


def _padded(picture: NDArray, height: int) -> NDArray:
    """Return an image in the middle of a dark column of this height."""
    above = (height - len(picture)) / 2
    room = ((math.floor(above), math.ceil(above)), (0, 0), (0, 0))
    return np.pad(picture, room, constant_values=_GROUND)
