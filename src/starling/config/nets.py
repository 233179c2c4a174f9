"""Networks configured one by one (`nets`); does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from starling.config.parts import (
    CoreConfig,
    HeadConfig,
    NetConfig,
    OptimizerConfig,
    Part,
    PreprocessingConfig,
    TorsoConfig,
)
from starling.errors import did_you_mean, quoted

TRUNK = ("preprocessing", "torso", "core", "inputs")
"""Settings of what a network shares with `share`."""


class NetworkConfig(Part):
    """One network of an algorithm."""

    share: str | None = Field(
        None, description="network whose preprocessing, torso, and core it uses, with a head of its own; null: none"
    )
    preprocessing: list[PreprocessingConfig] | None = Field(
        None, description="transformations of observations before the torso; null: as in net"
    )
    torso: TorsoConfig | None = Field(None, description="observation to features; null: as in net")
    core: CoreConfig | None = Field(None, description="memory over time; null: as in net")
    inputs: list[Literal["action", "reward"]] | None = Field(
        None, description="further inputs of the core; null: as in net"
    )
    init: Literal["default", "orthogonal"] | None = Field(
        None, description="initialization of the weights; null: as in net"
    )
    head: HeadConfig | None = Field(None, description="features to outputs; null: as in net")
    optimizer: OptimizerConfig | None = Field(
        None,
        description="optimizer of this network; of its head only, with share; null: one with the settings of"
        " algo.optimizer, or with share the optimizer of the network that it shares",
    )

    @model_validator(mode="after")
    def _shares_or_has_its_own(self) -> NetworkConfig:
        own = [key for key in TRUNK if getattr(self, key) is not None]
        if self.share is not None and own:
            raise ValueError(f"it shares those of {self.share!r}, so leave out {', '.join(own)}, or else share")
        return self


class NamedNets(NetConfig):
    """The settings of `net` with those of every network of `nets` in their place; algorithms get it as `net`."""

    networks: dict[str, NetworkConfig]

    @classmethod
    def of(cls, net: NetConfig, networks: Mapping[str, NetworkConfig]) -> NamedNets:
        return cls(**{name: getattr(net, name) for name in type(net).model_fields}, networks=dict(networks))

    @property
    def recurrent(self) -> bool:
        return any(self.settings_of(name).recurrent for name in self.networks)

    @property
    def has_memory(self) -> bool:
        return any(self.settings_of(name).has_memory for name in self.networks)

    def network_of(self, name: str, stream: str) -> str:
        own = f"{name}_{stream}"
        return own if own in self.networks else name

    def trunk_of(self, network: str, head: str) -> str:
        return share_chain(self.networks, network)[-1]

    def settings_of(self, network: str) -> NetConfig:
        one, trunk = self.networks[network], self.networks[self.trunk_of(network, network)]
        own: dict[str, Any] = {key: getattr(trunk, key) for key in TRUNK}
        own |= {"head": one.head, "init": one.init}
        common = {name: getattr(self, name) for name in NetConfig.model_fields}
        return NetConfig(**common | {key: value for key, value in own.items() if value is not None})

    def optimizers(self, name: str, default: OptimizerConfig) -> dict[str, OptimizerConfig]:
        """One optimizer per network, called like it, but none for a network that shares without one of its own."""
        return {
            network: config.optimizer or default
            for network, config in self.networks.items()
            if self.optimizer_of(network) == network
        }

    def optimizer_of(self, network: str) -> str:
        chain = share_chain(self.networks, network)
        return next((one for one in chain if self.networks[one].optimizer is not None), chain[-1])


def share_chain(networks: Mapping[str, NetworkConfig], name: str) -> list[str]:
    """The network, the one whose trunk it shares, and so on; the last one has its own.

    Raises ValueError if there is no last one, or a name that is not in `networks`.
    """
    chain = [name]
    while (shared := networks[chain[-1]].share) is not None:
        if shared not in networks:
            raise ValueError(
                f"nets.{chain[-1]}.share: there is no network {quoted(shared)}{did_you_mean(shared, networks)}"
                f" (use one of {', '.join(networks)})"
            )
        if shared in chain:
            circle = " -> ".join([*chain[chain.index(shared) :], shared])
            raise ValueError(f"nets.{shared}.share: {circle} is circular; one of them needs a torso of its own")
        chain.append(shared)
    return chain


def check_networks(
    algo: str, networks: Mapping[str, NetworkConfig], expected: Collection[str], optional: Collection[str]
) -> None:
    """Raise ValueError unless `networks` are those that the algorithm expects, and perhaps some of the optional."""
    if not expected:
        raise ValueError(f"nets: {algo} names no networks to configure one by one; leave nets out, and use net")
    known = [*expected, *optional]
    for name in networks:
        if name not in known:
            raise ValueError(
                f"nets.{name}: {algo} has no such network{did_you_mean(name, known)} (use {', '.join(known)})"
            )
    if missing := [name for name in expected if name not in networks]:
        example = f"{{share: {next(iter(networks))}}}" if len(expected) > 1 else "{}"
        raise ValueError(
            f"nets.{missing[0]} is missing: {algo} has {' and '.join(expected)}, and nets lists them all, e.g."
            f" nets.{missing[0]}={example}"
        )
    for name in networks:
        share_chain(networks, name)
