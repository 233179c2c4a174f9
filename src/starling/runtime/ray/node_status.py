"""What travels between the driver and a Ray actor that holds workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from starling.config.schema import SupervisionConfig
from starling.runtime.messages import EvaluationDone, Fault
from starling.types import Episode, NDArray

if TYPE_CHECKING:
    from starling.runtime.ray.relay import NodeWorkers


class NodeArgs(Protocol):
    """Settings of the workers of a node; see `launch.ray`."""

    def for_incarnations(self, incarnations: Mapping[int, int]) -> NodeArgs: ...

    def build(self) -> NodeWorkers: ...


@dataclass(frozen=True)
class NodeSpec:
    """The workers of a node, and how they are supervised."""

    name: str
    args: NodeArgs
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
class GroupStatus:
    """A group of env rows: which life it is in, and what came of the earlier ones on this node."""

    incarnation: int
    produced: int  # env steps in this life
    ended: tuple[int, ...]  # env steps of the lives before it, the newest last
    working: bool  # whether its env loop and its policy run
    given_up: bool


@dataclass(frozen=True)
class Vitals:
    """How a process of a node spends its time; see `Usage`."""

    kind: str
    name: str
    cells: NDArray


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node now, and what happened since it was asked last."""

    number: int  # of this answer, from 1 on without a gap
    groups: dict[int, GroupStatus]
    vitals: list[Vitals]
    faults: dict[str, int]  # crashes by kind
    ready: bool  # every worker has been built once
    episodes: list[Episode]
    evaluations: list[EvaluationDone]
    notices: list[str]
    dropped: int  # episodes in which an env gave no numbers
    failure: Fault | None  # it cannot go on


@dataclass(frozen=True)
class FragmentResult:
    """The answer to a credit: the fragment, or None where the credit comes back unused."""

    credit: Credit
    made: FragmentInfo | None
    news: NodeStatus
