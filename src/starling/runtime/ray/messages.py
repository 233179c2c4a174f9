"""Messages between the driver and a Ray actor that holds workers, and their order, which Ray does not preserve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from starling.config.schema import SupervisionConfig
from starling.runtime.messages import EvaluationDone, Fault
from starling.runtime.worker_output import PrintedLine
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
    """The permission to begin a fragment."""

    group: int
    slot: int


@dataclass(frozen=True)
class FragmentInfo:
    """The origin and size of a fragment, without its arrays."""

    actor_id: int
    sequence: int
    steps: int  # valid ones


OnStored = Callable[[int | None], None]
"""Called with the number of steps of a fragment that were stored; None if it was lost."""


@dataclass(frozen=True)
class GroupStatus:
    """A group of envs: its current incarnation, and the earlier ones on this node."""

    incarnation: int
    produced: int  # env steps of this incarnation
    ended: tuple[int, ...]  # env steps of the earlier incarnations, the newest last
    working: bool  # its env loop and its policy are running
    given_up: bool


@dataclass(frozen=True)
class Vitals:
    """Time use of one process of a node; see `Usage`."""

    kind: str
    name: str
    cells: NDArray


@dataclass(frozen=True)
class NodeStatus:
    """The current state of a node, and the events since the last status."""

    number: int  # consecutive, from 1 on
    groups: dict[int, GroupStatus]
    vitals: list[Vitals]
    faults: dict[str, int]  # crashes by kind
    ready: bool  # every worker has been built once
    episodes: list[Episode]
    evaluations: list[EvaluationDone]
    notices: list[str]
    printed: list[PrintedLine]  # by its workers
    dropped: int  # episodes in which an env returned values that are not finite
    failure: Fault | None  # the node cannot continue


@dataclass(frozen=True)
class FragmentResult:
    """The result of a credit: a fragment, or None if the credit was returned unused."""

    credit: Credit
    made: FragmentInfo | None
    news: NodeStatus


class Reorder:
    """Handles numbered messages in order; those with arrays may arrive after later ones without."""

    def __init__(self) -> None:
        self._taken = 0
        self._early: dict[int, Callable[[], None]] = {}

    def came(self, number: int, take: Callable[[], None]) -> None:
        """Call `take` once all messages with smaller numbers have been handled; the first number is 1."""
        self._early[number] = take
        while (next_one := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            next_one()
