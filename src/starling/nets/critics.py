"""An ensemble of critics with the same architecture, evaluated with one batched matrix product per layer."""

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
from starling.nets.preprocessing import build_preprocessing
from starling.nets.torsos import Torso, build_torso
from starling.ops.devices import on_cpu
from starling.types import EnvSpec, Tensor, Tree


class Layer(nn.Module):
    """One dense layer of E networks, initialized like `nn.Linear`."""

    def __init__(self, members: int, inputs: int, outputs: int, norm: str = "none") -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))
        self.scale = self.shift = None  # of LayerNorm, separate for each member
        if norm != "none":
            self.scale = nn.Parameter(torch.ones(members, 1, outputs))
            self.shift = nn.Parameter(torch.zeros(members, 1, outputs))

    def orthogonal(self, gain: float) -> None:
        """Initialize every member like `layers.orthogonal`: orthogonal weights and zero biases."""
        for member in self.weight:
            nn.init.orthogonal_(member, gain)
        nn.init.zeros_(self.bias)


class Ensemble(nn.Module):
    """E independent MLPs: [N, F] to [E, N, outputs].

    Like `Dense`, it calls functions, not modules: a small network spends half of its time between the products.
    """

    def __init__(self, members: int, sizes: Sequence[int], activation: str, norm: str = "none") -> None:
        super().__init__()
        *hidden, last = pairwise(sizes)
        self.members = members
        self.activation = ACTIVATIONS[activation]
        self.rectified = activation == "relu" and norm == "none" and len(sizes) > 2  # required by `lowest`
        self.hidden = nn.ModuleList(Layer(members, inputs, outputs, norm) for inputs, outputs in hidden)
        self.last = Layer(members, *last)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.stack([self._member(x, i) for i in range(self.members)])
        x = x.expand(self.members, *x.shape)
        layer: Any
        for layer in self.hidden:
            x = torch.bmm(x, layer.weight).add_(layer.bias)  # faster than baddbmm, which first copies the bias
            if layer.scale is not None:
                x = torch.addcmul(layer.shift, layer_norm(x, x.shape[-1:]), layer.scale)
            x = self.activation(x)
        if self.last.weight.shape[-1] == 1:  # as a matrix product it takes eight times as long
            return (x * self.last.weight.transpose(1, 2)).sum(-1, keepdim=True).add_(self.last.bias)
        return torch.bmm(x, self.last.weight).add_(self.last.bias)

    def _member(self, x: Tensor, i: int) -> Tensor:
        """Forward pass of member i only, [N, F] to [N, outputs].

        A layer of one member fits into a cache that is too small for all members; only compiled code benefits.
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
        """Minimum [N] over members with ReLUs and one output at x [N, F], and its gradient in the `last` inputs.

        Each row is differentiated only through the member that attains its minimum: half the products of `backward`
        for two members.
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
        """Orthogonal initialization, with the gains of a value head and its hidden layers."""
        for layer in self.hidden:
            assert isinstance(layer, Layer)
            layer.orthogonal(HIDDEN_GAIN)
        self.last.orthogonal(1.0)


class Critics(nn.Module):
    """Q values of E critics: of a given action, [E, N], or of all discrete actions, [E, N, A].

    All critics share the image encoders; every layer after them is separate for each critic.
    """

    def __init__(self, torso: nn.Module, ensemble: Ensemble) -> None:
        super().__init__()
        self.torso, self.ensemble = torso, ensemble

    def encode(self, obs: Tree) -> Tensor:
        """Shared features [N, F] of obs [N, ...]."""
        features: Tensor = self.torso(obs)
        return features

    def forward(self, features: Tensor, action: Tensor | None = None) -> Tensor:
        """Q for features [N, F] and, unless actions are discrete, actions [N, D] as the policy emits them."""
        q: Tensor = self.ensemble(features if action is None else torch.cat((features, action), dim=-1))
        return q if action is None else q.squeeze(-1)

    def lowest(self, features: Tensor, action: Tensor) -> Tensor:
        """The minimum Q [N] over critics of action [N, D], to be differentiated with respect to the action only.

        In compiled code the critics' parameters and the features get no gradient.
        """
        rows_known = on_cpu(features)  # elsewhere the host would wait to select the rows of each member
        if not (rows_known and self.ensemble.rectified and torch.is_grad_enabled() and torch.compiler.is_compiling()):
            lowest: Tensor = reduce(torch.minimum, self(features, action))
            return lowest
        given = action.detach()
        q, slope = self.ensemble.lowest(torch.cat((features, given), dim=-1), given.shape[-1])
        return q + (slope * (action - given)).sum(-1)


def build_critics(env: EnvSpec, net: NetConfig, members: int) -> Critics:
    """Build critics with hidden layers `net.torso.hidden`, for Discrete actions or a Box with one axis."""
    config = net.torso
    steps, space = build_preprocessing(env.observation, net.preprocessing)
    torso: Any = build_torso(space, config.model_copy(update={"hidden": []}))
    if isinstance(env.action, spaces.Discrete):
        inputs, outputs = torso.size, int(env.action.n)
    elif isinstance(env.action, spaces.Box) and len(env.action.shape) == 1:
        inputs, outputs = torso.size + env.action.shape[0], 1
    else:
        raise UserError(f"critics need Discrete actions or a Box of them with one axis; {env.id} has {env.action}")
    ensemble = Ensemble(members, [inputs, *(config.hidden or ()), outputs], config.activation, config.norm)
    if net.init == "orthogonal":
        ensemble.orthogonal()
        if isinstance(torso, Torso):  # a user's own torso keeps its own initialization
            orthogonal(torso)
    return Critics(nn.Sequential(*steps, torso) if steps else torso, ensemble)
