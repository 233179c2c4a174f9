"""Build a network from its configuration: torso, core, and heads, shared or separate, and their initialization."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.cores import build_core
from starling.nets.encoders import Flat, OneHot
from starling.nets.heads import HeadSpec, build_head, orthogonal_head
from starling.nets.layers import orthogonal
from starling.nets.network import SHARED, Network, PreviousInputs, Trunk
from starling.nets.normalisers import ObservationNormaliser
from starling.nets.torsos import Torso, build_torso
from starling.types import EXTRINSIC, EnvSpec

__all__ = ["HeadSpec", "Network", "build_network"]


def build_network(
    env: EnvSpec,
    net: NetConfig,
    heads: dict[str, HeadSpec],
    streams: tuple[str, ...] = (EXTRINSIC,),
    normalise: bool = False,
) -> Network:
    """Build the network that `net` describes, with `heads` by name; `streams` are rewards it may take as input."""
    if not heads or SHARED in heads:
        raise ValueError(f"a network needs heads, none of them called {SHARED!r}")
    previous = _previous(env.action, net, streams)
    extra = 0 if previous is None else previous.size
    trunks = {name: _trunk(env, net, extra) for name in ((SHARED,) if net.shared else heads)}
    built = {}
    for name, spec in heads.items():
        trunk = trunks[SHARED if net.shared else name]
        built[name] = build_head(trunk.core.size, env.action, spec)
        if net.init == "orthogonal":
            orthogonal_head(built[name], spec.last_gain)
    return Network(trunks, built, previous, ObservationNormaliser(env.observation) if normalise else None)


def _trunk(env: EnvSpec, net: NetConfig, extra: int) -> Trunk:
    torso: Any = build_torso(env.observation, net.torso)
    core = build_core(torso.size + extra, net.core)
    if net.init == "orthogonal":
        orthogonal(core)
        if isinstance(torso, Torso):  # a user's own torso keeps its own initialization
            orthogonal(torso)
    return Trunk(torso, core)


def _previous(space: spaces.Space[Any], net: NetConfig, streams: tuple[str, ...]) -> PreviousInputs | None:
    if not net.inputs:
        return None
    encoder = _action_encoder(space) if "action" in net.inputs else None
    return PreviousInputs(space, encoder, streams if "reward" in net.inputs else ())


def _action_encoder(space: spaces.Space[Any]) -> Flat | OneHot:
    """Encoder of previous actions as the policy emits them: integers from 0, or floats that are not rescaled."""
    if isinstance(space, spaces.Discrete):
        return OneHot(spaces.Discrete(int(space.n)))
    if isinstance(space, spaces.MultiDiscrete):
        return OneHot(spaces.MultiDiscrete(space.nvec))
    if isinstance(space, spaces.Box):
        return Flat(spaces.Box(-1.0, 1.0, space.shape))
    if isinstance(space, spaces.MultiBinary):
        return Flat(space)
    raise UserError(f"net.inputs: the previous action cannot enter the network for the action space {space}")
