"""Starling: write a reinforcement-learning agent once, run it in one process, on every core, or on a cluster.

The names below are imported lazily, on first use, so that `import starling` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starling.algos.base import (
        ActInput,
        ActOutput,
        Algorithm,
        LearnSpec,
        Loss,
        LossPart,
        OptimizerSpec,
        TargetSpec,
        merge_losses,
        network_optimizers,
    )
    from starling.algos.tables import replay_table, rollout_table
    from starling.api import (
        Agent,
        PrintDisplay,
        load,
        register_algorithm,
        register_env,
        register_torso,
        register_wrapper,
        resume,
        train,
    )
    from starling.config.algorithms import AlgoConfig
    from starling.config.parts import Linear, NetConfig, OptimizerConfig
    from starling.config.quantities import Quantity
    from starling.errors import UserError
    from starling.nets.build import HeadSpec, Network, build_network
    from starling.replay.spec import TableSpec
    from starling.types import Batch, EnvSpec, Progress, StreamSpec, Trajectory

_HOMES = {
    "starling.api": (
        "Agent", "PrintDisplay", "load", "register_algorithm", "register_env", "register_torso", "register_wrapper",
        "resume", "train",
    ),
    "starling.algos.base": (
        "ActInput", "ActOutput", "Algorithm", "LearnSpec", "Loss", "LossPart", "OptimizerSpec", "TargetSpec",
        "merge_losses", "network_optimizers",
    ),
    "starling.algos.tables": ("replay_table", "rollout_table"),
    "starling.config.algorithms": ("AlgoConfig",),
    "starling.config.parts": ("Linear", "NetConfig", "OptimizerConfig"),
    "starling.config.quantities": ("Quantity",),
    "starling.errors": ("UserError",),
    "starling.nets.build": ("HeadSpec", "Network", "build_network"),
    "starling.replay.spec": ("TableSpec",),
    "starling.types": ("Batch", "EnvSpec", "Progress", "StreamSpec", "Trajectory"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActInput",
    "ActOutput",
    "Agent",
    "AlgoConfig",
    "Algorithm",
    "Batch",
    "EnvSpec",
    "HeadSpec",
    "LearnSpec",
    "Linear",
    "Loss",
    "LossPart",
    "NetConfig",
    "Network",
    "OptimizerConfig",
    "OptimizerSpec",
    "PrintDisplay",
    "Progress",
    "Quantity",
    "StreamSpec",
    "TableSpec",
    "TargetSpec",
    "Trajectory",
    "UserError",
    "build_network",
    "load",
    "merge_losses",
    "network_optimizers",
    "register_algorithm",
    "register_env",
    "register_torso",
    "register_wrapper",
    "replay_table",
    "resume",
    "rollout_table",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'starling' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME_OF[name]), name)
