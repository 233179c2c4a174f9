"""Heads: features [..., F] to Q values, values, or an action distribution; leading axes are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from starling.config.parts import HeadConfig
from starling.errors import UserError
from starling.nets.layers import Dense, OutputLinear, orthogonal
from starling.ops.distributions import Categorical, Gaussian, MultiCategorical, TanhGaussian
from starling.registry import Entry, Registry, check_arguments, check_kind
from starling.types import Tensor

GRADIENT_SCALE = 0.5**0.5
"""Scale of the gradient from a dueling head, since two branches share one torso (1511.06581, section 4.2)."""


HEAD = HeadConfig()
"""Settings of a head that change nothing."""


@dataclass(frozen=True)
class HeadSpec:
    """Description of a head: its kind, its network, its action space, its layers, and their initialization."""

    kind: str  # q, dueling, value, policy (by the action space), categorical, gaussian, tanh_gaussian, deterministic
    space: spaces.Space[Any] | None = None  # action space; None: the environment's
    hidden: tuple[int, ...] = ()  # widths of the head's hidden layers, for each branch of a dueling head
    activation: str = "relu"  # of the hidden layers
    gain: float | None = None  # of orthogonal weights in the last layer; None: 0.01 for policies, 1 for values
    network: str | None = None  # name in `nets`; None: that of the head
    log_std: float = 0.0  # gaussian: initial value of the parameter
    log_std_range: tuple[float, float] = (-20.0, 2.0)  # tanh_gaussian: the output is clamped to it

    @property
    def last_gain(self) -> float:
        if self.gain is not None:
            return self.gain
        return 1.0 if self.kind in ("q", "dueling", "value") else 0.01


def _layers(inputs: int, outputs: int, spec: HeadSpec) -> nn.Linear | nn.Sequential:
    if not spec.hidden:
        return OutputLinear(inputs, outputs)
    return nn.Sequential(Dense(inputs, spec.hidden, spec.activation), OutputLinear(spec.hidden[-1], outputs))


def _discrete(kind: str, space: spaces.Space[Any]) -> int:
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"a {kind} head needs discrete actions, not {space}; choose an algorithm for such actions")
    return int(space.n)


def _continuous(kind: str, space: spaces.Space[Any]) -> int:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise UserError(f"a {kind} head needs a Box of actions with one axis, not {space}")
    return int(space.shape[0])


class ValueHead(nn.Module):
    """V(s): [..., F] to [...]."""

    def __init__(self, inputs: int, _space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.value = _layers(inputs, 1, spec)

    def forward(self, x: Tensor) -> Tensor:
        v: Tensor = self.value(x)  # [..., 1]
        return v.squeeze(-1)


class QHead(nn.Module):
    """Q(s, a) of every discrete action: [..., F] to [..., A]."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.q = _layers(inputs, _discrete(spec.kind, space), spec)

    def forward(self, x: Tensor) -> Tensor:
        q: Tensor = self.q(x)
        return q


class DuelingHead(nn.Module):
    """Q = V + A - mean A (1511.06581, equation 9): [..., F] to [..., A]."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.value = _layers(inputs, 1, spec)
        self.advantage = _layers(inputs, _discrete(spec.kind, space), spec)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = torch.lerp(x.detach(), x, GRADIENT_SCALE)  # bitwise equal to x, with a scaled gradient
        advantage: Tensor = self.advantage(x)  # [..., A]
        v: Tensor = self.value(x)  # [..., 1]
        return v + advantage - advantage.mean(dim=-1, keepdim=True)


class CategoricalHead(nn.Module):
    """A policy over Discrete actions."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.logits = _layers(inputs, _discrete(spec.kind, space), spec)

    def forward(self, x: Tensor) -> Categorical:
        return Categorical(self.logits(x))


class MultiCategoricalHead(nn.Module):
    """A policy over MultiDiscrete or MultiBinary actions: independent categoricals from one layer of logits."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self.sizes = tuple(int(n) for n in space.nvec)
        elif isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            self.sizes = (2,) * space.shape[0]
        else:
            raise UserError(f"a {spec.kind} head needs MultiDiscrete or MultiBinary actions with one axis, not {space}")
        self.logits = _layers(inputs, sum(self.sizes), spec)

    def forward(self, x: Tensor) -> MultiCategorical:
        return MultiCategorical(self.logits(x).split(self.sizes, dim=-1))


class GaussianHead(nn.Module):
    """A Gaussian policy with a state-independent log-std parameter."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        size = _continuous(spec.kind, space)
        self.mean = _layers(inputs, size, spec)
        self.log_std = nn.Parameter(torch.full((size,), spec.log_std))

    def forward(self, x: Tensor) -> Gaussian:
        mean = self.mean(x)  # [..., A]
        return Gaussian(mean, self.log_std.expand_as(mean))


class TanhGaussianHead(nn.Module):
    """SAC's policy (1801.01290, appendix C): state-dependent mean and clamped log-std, squashed by tanh."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.range = spec.log_std_range
        self.both = _layers(inputs, 2 * _continuous(spec.kind, space), spec)

    def forward(self, x: Tensor) -> TanhGaussian:
        mean, log_std = self.both(x).chunk(2, dim=-1)  # [..., A] each
        return TanhGaussian(mean, log_std.clamp(*self.range))


class DeterministicHead(nn.Module):
    """A deterministic policy (TD3, DDPG): actions in (-1, 1), the tanh of a linear layer."""

    def __init__(self, inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> None:
        super().__init__()
        self.action = _layers(inputs, _continuous(spec.kind, space), spec)

    def forward(self, x: Tensor) -> Tensor:
        action: Tensor = self.action(x)
        return action.tanh()


def policy_head(inputs: int, space: spaces.Space[Any], spec: HeadSpec) -> nn.Module:
    """Build the default policy head for the action space."""
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(inputs, space, spec)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return MultiCategoricalHead(inputs, space, spec)
    return GaussianHead(inputs, space, spec)


HEADS = Registry(
    "head",
    {
        "q": Entry(QHead, "Q-values of discrete actions"),
        "dueling": Entry(DuelingHead, "Q-values as value and advantages"),
        "value": Entry(ValueHead, "a state's value"),
        "policy": Entry(policy_head, "the default policy for the action space"),
        "categorical": Entry(CategoricalHead, "a policy over Discrete actions"),
        "multi_categorical": Entry(MultiCategoricalHead, "a policy over MultiDiscrete actions"),
        "gaussian": Entry(GaussianHead, "a Gaussian policy, log-std as a parameter"),
        "tanh_gaussian": Entry(TanhGaussianHead, "a squashed Gaussian policy, state-dependent log-std"),
        "deterministic": Entry(DeterministicHead, "an action in (-1, 1), without a distribution"),
    },
)


def build_head(
    inputs: int, space: spaces.Space[Any], spec: HeadSpec, config: HeadConfig = HEAD, init: str = "default"
) -> nn.Module:
    """Build the head that `spec` names, for the env's action `space` unless `spec` has its own.

    What `config` sets comes before `spec`. A user's own class is constructed with (inputs, space, spec, **args), and
    keeps its own initialization.
    """
    if config.hidden is not None:
        spec = replace(spec, hidden=tuple(config.hidden), activation=config.activation)
    kind = spec.kind if config.kind == "auto" else config.kind
    if config.args and kind == spec.kind:
        raise UserError("head.args are for a class of your own: set head.kind, or leave them out")
    factory = HEADS.load(kind)
    check_kind(factory, kind, "head", (nn.Module,))
    check_arguments(factory, f"head {kind}", "(inputs, space, spec, **head.args)", inputs, space, spec, **config.args)
    head: nn.Module = factory(inputs, space if spec.space is None else spec.space, spec, **config.args)
    if init == "orthogonal" and kind == spec.kind:
        orthogonal_head(head, spec.last_gain)
    return head


def orthogonal_head(head: nn.Module, gain: float) -> None:
    """Orthogonal initialization with `gain` in the last layer of every branch and sqrt(2) in hidden layers."""
    orthogonal(head)
    for branch in head.children():
        orthogonal(branch[-1] if isinstance(branch, nn.Sequential) else branch, gain)
