"""Layers of torsos and heads, and orthogonal initialization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from torch import nn
from torch.nn import functional

from starling.types import Tensor

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of orthogonal weights before a ReLU."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "elu": functional.elu_,
    "gelu": functional.gelu,
}
"""Activations by name, in place if possible: for layer outputs that are not used elsewhere."""


KEEPING: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "gelu": functional.gelu,
}
"""Out-of-place activations, for inputs that are used again."""


class Activation(nn.Module):
    """An activation as a module; `keep` leaves its input unchanged."""

    def __init__(self, name: str, keep: bool = False) -> None:
        super().__init__()
        self.function = (KEEPING if keep else ACTIVATIONS)[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Dense(nn.Module):
    """An MLP of linear layers, each followed by an optional LayerNorm and the activation: [..., F] to [..., size].

    Without widths it is the identity. It calls functions, not modules, because a module call of a small network takes
    as long as its arithmetic.
    """

    def __init__(self, inputs: int, widths: Sequence[int], activation: str, norm: str = "none") -> None:
        super().__init__()
        sizes = [inputs, *widths]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], widths, strict=True))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths if norm != "none")
        self.activation = ACTIVATIONS[activation]
        self.size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        activation = self.activation
        for linear, norm in zip_longest(self.linears, self.norms):
            x = functional.linear(x, linear.weight, linear.bias)  # type: ignore[arg-type]
            x = activation(x if norm is None else norm(x))
        return x


class OutputLinear(nn.Linear):
    """A linear layer for outputs such as values and logits that computes in float32 even under autocast.

    bfloat16 has 8 significant bits: values near 1 would be rounded to multiples of 0.004 to 0.008, and TD errors, as
    differences of such values, are often no larger than that.
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return super().forward(x)
        with torch.autocast(device, enabled=False):
            return super().forward(x.float())


def conv_norm(name: str, channels: int) -> list[nn.Module]:
    """GroupNorm (1803.08494) for [N, C, H, W]; `layer` uses one group of all channels, `none` no norm."""
    if name == "none":
        return []
    # A group of a single channel would erase the strength of its response, so groups have at least two if possible.
    fitting = (g for g in (8, 4, 2, 1) if channels % g == 0 and channels // g >= min(2, channels))
    return [nn.GroupNorm(1 if name == "layer" else next(fitting), channels)]


def orthogonal(module: nn.Module, gain: float = HIDDEN_GAIN) -> None:
    """Orthogonal weights (1312.6120) and zero biases, in place; recurrent weights have gain 1.

    The forget gate biases of an LSTM are spread from 0 to 4, which gives its units half-lives of 1 to 38 steps. With
    zeros, gradients from 20 steps back would shrink to a millionth (1804.11188).
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
            if isinstance(layer, nn.LSTM):
                gates = layer.get_parameter("bias_ih_l0").view(4, layer.hidden_size)  # gates[1] is the forget gate
                with torch.no_grad():
                    gates[1] = torch.linspace(0.0, 4.0, layer.hidden_size, device="cpu")
