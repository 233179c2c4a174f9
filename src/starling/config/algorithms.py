"""Algorithms by name: their settings, which are checked without importing torch, and their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeGuard

from pydantic import ConfigDict, Field

from starling.config.nets import NetworkConfig, check_networks
from starling.config.parts import Part
from starling.errors import UserError
from starling.registry import Entry, Registry, import_path

ALGORITHMS = Registry(
    "algorithm",
    {
        "apex": Entry(
            "starling.algos.apex.config:ApeXConfig", "DQN with per-env epsilons and actors' initial priorities"
        ),
        "dqn": Entry("starling.algos.dqn.config:DQNConfig", "deep Q-learning; double, dueling, n-step, prioritized"),
        "impact": Entry(
            "starling.algos.impact.config:IMPACTConfig", "PPO with a target policy; uses each batch several times"
        ),
        "impala": Entry(
            "starling.algos.impala.config:IMPALAConfig",
            "V-trace with actors that run ahead, recurrent or not; can mix in replay",
        ),
        "ngu": Entry(
            "starling.algos.ngu.config:NGUConfig", "R2D2 with a family of policies with different weights of novelty"
        ),
        "ppo": Entry("starling.algos.ppo.config:PPOConfig", "proximal policy optimization, recurrent or not"),
        "pqn": Entry(
            "starling.algos.pqn.config:PQNConfig", "Q(lambda) from parallel envs, without replay or a target network"
        ),
        "r2d2": Entry("starling.algos.r2d2.config:R2D2Config", "recurrent Ape-X: replayed sequences, burn-in, Retrace"),
        "sac": Entry("starling.algos.sac.config:SACConfig", "soft actor-critic, for continuous or discrete actions"),
    },
)
"""Built-in names refer to a config class, which names its algorithm; user-defined names refer to an algorithm class,
whose attribute `Config` is its config class."""


class AlgoConfig(Part):
    """Settings of one algorithm; a subclass adds its own."""

    implementation: ClassVar[str] = ""  # import path of the algorithm's class
    actions: ClassVar[tuple[str, ...]] = ()  # names of supported action space classes; empty: any
    networks: ClassVar[Mapping[str, str]] = {}  # names that `nets` lists, each with a description
    stream_network: ClassVar[str | None] = None  # the one of them of which reward streams may have one of their own
    name: str = Field(description="algorithm: a built-in name or package.module:Class")

    def algorithm_path(self) -> str:
        """The import path of the algorithm for these settings; override it if they choose among several classes."""
        return self.implementation

    def network_names(self) -> tuple[str, ...]:
        """The networks that `nets` must list; override it if they depend on the settings."""
        return tuple(self.networks)

    def check_networks(self, nets: Mapping[str, NetworkConfig], streams: Sequence[str]) -> None:
        """Raise ValueError if `nets` are not the networks of the algorithm, with intrinsic reward `streams`."""
        optional = [f"{self.stream_network}_{stream}" for stream in streams] if self.stream_network else []
        check_networks(self.name, nets, self.network_names(), optional)

    def check_actions(self, env: str, space: object) -> None:
        """Raise `UserError` if the algorithm does not support the action space of the env."""
        kind = type(space).__name__
        if self.actions and kind not in self.actions:
            raise UserError(f"{self.name} needs a {' or '.join(self.actions)} action space; {env} has a {kind}")


class UnknownConfig(AlgoConfig):
    """Settings of an algorithm that is not imported: any keys, and any networks, are accepted."""

    model_config = ConfigDict(extra="allow")

    def check_networks(self, nets: Mapping[str, NetworkConfig], streams: Sequence[str]) -> None:
        """Accept all."""


def config_class(name: str, *, imports: bool = True) -> type[AlgoConfig]:
    """Return the settings class of the algorithm `name`; does not import torch for built-ins.

    With `imports=False`, an algorithm that is neither built in nor registered has `UnknownConfig`.
    """
    if not imports and ":" in name and name not in ALGORITHMS:
        return UnknownConfig
    found = ALGORITHMS.load(name)
    settings = found if _is_settings(found) else getattr(found, "Config", None)
    if not _is_settings(settings):
        raise UserError(f"algorithm {name!r} needs an attribute Config, a subclass of starling.AlgoConfig")
    return settings


def algorithm_class(config: AlgoConfig) -> Any:
    """Return the class of the algorithm with these settings; imports torch."""
    found = ALGORITHMS.load(config.name)
    return import_path(config.algorithm_path()) if _is_settings(found) else found


def _is_settings(found: Any) -> TypeGuard[type[AlgoConfig]]:
    return isinstance(found, type) and issubclass(found, AlgoConfig)
