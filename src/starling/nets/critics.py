"""Several critics of one shape as one network: each of their layers is one batched product over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn.functional import layer_norm

from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.layers import ACTIVATIONS, HIDDEN_GAIN, orthogonal
from starling.nets.torsos import Torso, build_torso
from starling.types import EnvSpec, Tensor, Tree


class Layer(nn.Module):
    """One dense layer of E networks; weights begin as torch's own do."""

    def __init__(self, members: int, inputs: int, outputs: int, norm: str = "none") -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))
        self.scale = self.shift = None  # of LayerNorm, a member's own
        if norm != "none":
            self.scale = nn.Parameter(torch.ones(members, 1, outputs))
            self.shift = nn.Parameter(torch.zeros(members, 1, outputs))

    def orthogonal(self, gain: float) -> None:
        """Orthogonal weights and zero biases in every member, as `layers.orthogonal` does it for one network."""
        for member in self.weight:
            nn.init.orthogonal_(member, gain)
        nn.init.zeros_(self.bias)


class Ensemble(nn.Module):
    """E stacks of dense layers that share nothing: [N, F] to [E, N, outputs].

    It calls functions, not modules, as `Dense` does: half of the time of a small network is spent between products.
    """

    def __init__(self, members: int, sizes: Sequence[int], activation: str, norm: str = "none") -> None:
        super().__init__()
        *hidden, last = pairwise(sizes)
        self.members = members
        self.activation = ACTIVATIONS[activation]
        self.rectified = activation == "relu" and norm == "none" and len(sizes) > 2  # what `lowest` can do
        self.hidden = nn.ModuleList(Layer(members, inputs, outputs, norm) for inputs, outputs in hidden)
        self.last = Layer(members, *last)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.stack([self._member(x, i) for i in range(self.members)])
        x = x.expand(self.members, *x.shape)
        layer: Any
        for layer in self.hidden:
            x = torch.bmm(x, layer.weight).add_(layer.bias)  # baddbmm first copies the bias, and is slower for it
            if layer.scale is not None:
                x = torch.addcmul(layer.shift, layer_norm(x, x.shape[-1:]), layer.scale)
            x = self.activation(x)
        if self.last.weight.shape[-1] == 1:  # a sum a row: as a product it takes eight times as long
            return (x * self.last.weight.transpose(1, 2)).sum(-1, keepdim=True).add_(self.last.bias)
        return torch.bmm(x, self.last.weight).add_(self.last.bias)

    def _member(self, x: Tensor, i: int) -> Tensor:
        """The same of the member i alone, [N, F] to [N, outputs].

        A member's layer fits a cache that all of them together do not; only compiled code has the time for it.
        """
        layer: Any
        for layer in self.hidden:
            x = torch.addmm(layer.bias[i], x, layer.weight[i])
            if layer.scale is not None:
                x = torch.addcmul(layer.shift[i], layer_norm(x, x.shape[-1:]), layer.scale[i])
            x = self.activation(x)
        if self.last.weight.shape[-1] == 1:
            return (x * self.last.weight[i].t()).sum(-1, keepdim=True) + self.last.bias[i]
        return torch.addmm(self.last.bias[i], x, self.last.weight[i])

    @torch.no_grad()
    def lowest(self, x: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """The lowest member of rectified ones with one output [N] at x [N, F], and its slope in the `last` inputs.

        A row goes back through the member that is its lowest alone: half of the products that `backward` needs for two.
        """
        active, outputs = [], []  # [E][layers] [N, size], [E] [N]
        layers: Any = self.hidden
        for i in range(self.members):
            y, mine = x, []
            for layer in layers:
                y = torch.addmm(layer.bias[i], y, layer.weight[i]).relu()
                mine.append(y)
            active.append(mine)
            outputs.append((y * self.last.weight[i].t()).sum(-1) + self.last.bias[i, 0])
        lowest, which = torch.stack(outputs).min(0)
        slope = x.new_zeros(len(x), last)
        for i, mine in enumerate(active):
            rows = (which == i).nonzero()[:, 0]
            back = self.last.weight[i].t()  # [1, size], then [rows, size]
            for layer, y in zip(layers[:0:-1], mine[:0:-1], strict=True):
                back = back.where(y[rows] > 0, 0.0) @ layer.weight[i].t()
            back = back.where(mine[0][rows] > 0, 0.0) @ layers[0].weight[i, -last:].t()
            slope = slope.index_copy(0, rows, back.to(slope.dtype))
        return lowest, slope

    def orthogonal(self) -> None:
        """Orthogonal weights, as a value head and what lies before it have them."""
        for layer in self.hidden:
            assert isinstance(layer, Layer)
            layer.orthogonal(HIDDEN_GAIN)
        self.last.orthogonal(1.0)


class Critics(nn.Module):
    """Q of E critics, of an action that is given, [E, N], or of every discrete action, [E, N, A].

    Encoders of images are one for all critics; every layer after them is a critic's own.
    """

    def __init__(self, torso: nn.Module, ensemble: Ensemble) -> None:
        super().__init__()
        self.torso, self.ensemble = torso, ensemble

    def encode(self, obs: Tree) -> Tensor:
        """What all critics see of obs [N, ...]: [N, F]."""
        features: Tensor = self.torso(obs)
        return features

    def forward(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        """Q for features [N, F], and for action [N, D] in the policy's own units unless actions are discrete."""
        q: Tensor = self.ensemble(features if action is None else torch.cat((features, action), dim=-1))
        return q if action is None else q.squeeze(-1)

    def lowest(self, features: Tensor, action: Tensor) -> Tensor:
        """The lowest Q [N] of action [N, D], for a gradient of the action alone.

        Compiled there is no other: the critics' own parameters and the features have none then.
        """
        if not (self.ensemble.rectified and torch.is_grad_enabled() and torch.compiler.is_compiling()):
            lowest: Tensor = reduce(torch.minimum, self(features, action))
            return lowest
        given = action.detach()
        q, slope = self.ensemble.lowest(torch.cat((features, given), dim=-1), given.shape[-1])
        return q + (slope * (action - given)).sum(-1)


def build_critics(env: EnvSpec, net: NetConfig, members: int) -> Critics:
    """Critics whose dense layers are those of `net.torso.hidden`, for Discrete actions or a Box with one axis."""
    config = net.torso
    torso: Any = build_torso(env.observation, config.model_copy(update={"hidden": []}))
    if isinstance(env.action, spaces.Discrete):
        inputs, outputs = torso.size, int(env.action.n)
    elif isinstance(env.action, spaces.Box) and len(env.action.shape) == 1:
        inputs, outputs = torso.size + env.action.shape[0], 1
    else:
        raise UserError(f"critics need Discrete actions or a Box of them with one axis; {env.id} has {env.action}")
    ensemble = Ensemble(members, [inputs, *(config.hidden or ()), outputs], config.activation, config.norm)
    if net.init == "orthogonal":
        ensemble.orthogonal()
        if isinstance(torso, Torso):  # a torso of the user's own begins as it was made
            orthogonal(torso)
    return Critics(torso, ensemble)
