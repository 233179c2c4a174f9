"""What travels between the driver and a Ray actor that holds workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starling.config.schema import SupervisionConfig
from starling.types import Episode, NDArray


@dataclass(frozen=True)
class HostPlan:
    """A host as data: who says which workers it has, and from what."""

    name: str
    builder: str  # import path of a function (arguments) -> Staff
    arguments: Any
    incarnations: dict[int, int]  # of its groups
    supervision: SupervisionConfig


@dataclass(frozen=True)
class Credit:
    """Leave to begin a fragment."""

    group: int
    slot: int


@dataclass(frozen=True)
class FragmentInfo:
    """What is known of a fragment besides its arrays."""

    actor: int
    sequence: int
    steps: int  # valid ones


OnStored = Callable[[int | None], None]
"""Is told how many steps of a fragment were stored; None: it is lost."""


@dataclass(frozen=True)
class Life:
    """A group of env rows: which life it is in, and what came of the earlier ones on this host."""

    incarnation: int
    produced: int  # env steps in this life
    ended: tuple[int, ...]  # env steps of the lives before it, the newest last
    working: bool  # whether its env loop and its policy run
    given_up: bool


@dataclass(frozen=True)
class Vitals:
    """How a process of a host spends its time; see `Usage`."""

    kind: str
    name: str
    cells: NDArray


@dataclass(frozen=True)
class NodeStatus:
    """The state of a host now, and what happened since it was asked last."""

    number: int  # of this answer, from 1 on without a gap
    lives: dict[int, Life]
    vitals: list[Vitals]
    faults: dict[str, int]  # crashes by kind
    ready: bool  # every worker has been built once
    episodes: list[Episode]
    evaluations: list[dict[str, Any]]  # as an evaluator sends them
    notices: list[str]
    dropped: int  # episodes in which an env gave no numbers
    failure: dict[str, str] | None  # it cannot go on; see `Worker.fault`


@dataclass(frozen=True)
class FragmentResult:
    """The answer to a credit: the fragment, or None where the credit comes back unused."""

    credit: Credit
    made: FragmentInfo | None
    news: NodeStatus
