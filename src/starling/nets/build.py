"""Build a network from its configuration: trunks and heads, shared or separate, and their initialization."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import nn

from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.cores import build_core
from starling.nets.encoders import Flat, OneHot
from starling.nets.heads import HeadSpec, build_head
from starling.nets.layers import orthogonal
from starling.nets.network import SHARED, Network, PreviousInputs, Trunk
from starling.nets.normalizers import ObservationNormalizer
from starling.nets.preprocessing import build_preprocessing
from starling.nets.torsos import Torso, build_torso
from starling.types import EXTRINSIC, EnvSpec

__all__ = ["HeadSpec", "Network", "build_network"]


def build_network(
    env: EnvSpec,
    net: NetConfig,
    heads: dict[str, HeadSpec],
    streams: tuple[str, ...] = (EXTRINSIC,),
    normalize: bool = False,
) -> Network:
    """Build the network that `net` describes, with `heads` by name; `streams` are rewards it may take as input."""
    if not heads or SHARED in heads:
        raise ValueError(f"a network needs heads, none of them called {SHARED!r}")
    networks = {name: spec.network or name for name, spec in heads.items()}
    trunk_of = {name: net.trunk_of(network, name) or SHARED for name, network in networks.items()}
    trunks: dict[str, Trunk] = {}
    for name, trunk in trunk_of.items():
        if trunk not in trunks:
            trunks[trunk] = _trunk(env, net.settings_of(networks[name]), streams)
    built = {}
    for name, spec in heads.items():
        settings = net.settings_of(networks[name])
        built[name] = build_head(trunks[trunk_of[name]].core.size, env.action, spec, settings.head, settings.init)
    trained: dict[str | None, list[str]] = {}
    for part, network in [
        *((f"trunks.{name}", name) for name in trunks),
        *((f"heads.{h}", n) for h, n in networks.items()),
    ]:
        trained.setdefault(net.optimizer_of(network), []).append(part)
    normalizer = ObservationNormalizer(env.observation) if normalize else None
    return Network(trunks, built, trunk_of, normalizer, trained)


def _trunk(env: EnvSpec, net: NetConfig, streams: tuple[str, ...]) -> Trunk:
    steps, space = build_preprocessing(env.observation, net.preprocessing)
    torso: Any = build_torso(space, net.torso)
    previous = _previous(env.action, net, streams)
    core = build_core(torso.size + (0 if previous is None else previous.size), net.core)
    if net.init == "orthogonal":
        orthogonal(core)
        if isinstance(torso, Torso):  # a user's own torso keeps its own initialization
            orthogonal(torso)
    return Trunk(nn.Sequential(*steps, torso) if steps else torso, core, previous)


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
