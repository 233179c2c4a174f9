"""What ops do differently on a GPU: there the host would have to wait to learn how many rows a mask selects."""

from __future__ import annotations

from typing import Any

import torch

from starling import tree
from starling.ops.policy import masked_mean
from starling.types import Tensor, Tree


def on_cpu(x: Tensor) -> bool:
    """True if the host can read x without waiting for another device."""
    return x.device.type == "cpu"


def select_rows(rows: Tree, mask: Tensor) -> tuple[Any, Tensor | None]:
    """Rows to compute with, and the mask of those that count, or None if all do.

    Args:
        rows: Tree of tensors [N, ...].
        mask: bool [N].

    Returns:
        On a CPU the rows where `mask` is True, and None. On another device all rows, and `mask`.
    """
    if not on_cpu(mask):
        return rows, mask
    index = mask.nonzero().flatten()
    return tree.map(lambda leaf: leaf[index], rows), None


def mean_of(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean [] of x [N] where `mask` [N] is True, or of all of x if it is None."""
    return x.mean() if mask is None else masked_mean(x, mask)


class Constant:
    """A small tensor that is copied to each device once."""

    def __init__(self, values: Tensor) -> None:
        self._copies = {values.device: values}
        self._values = values

    def on(self, device: torch.device) -> Tensor:
        """The tensor on `device`."""
        if device not in self._copies:
            self._copies[device] = self._values.to(device)
        return self._copies[device]
