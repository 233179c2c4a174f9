"""The driver's side of a node: sends credits, receives fragments and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from starling.config.schema import Config
from starling.runtime.event_queue import Post
from starling.runtime.messages import (
    CreditGranted,
    CreditsReturned,
    EnvGroupPaused,
    EnvGroupResumed,
    EpisodesDropped,
    EpisodesEnded,
    Evaluate,
    FragmentReceived,
    IncarnationEnded,
    Message,
    Notice,
    SlotFreed,
    StepsLost,
    StepsStored,
)
from starling.runtime.ray.line import Line
from starling.runtime.ray.messages import (
    Credit,
    FragmentInfo,
    FragmentResult,
    GroupStatus,
    NodeArgs,
    NodeSpec,
    NodeStatus,
    OnStored,
    Reorder,
)
from starling.runtime.ray.node import Node
from starling.runtime.ray.placement import Place
from starling.runtime.ray.remote import RemoteWorker
from starling.runtime.shared_weights import SharedWeights
from starling.runtime.worker import Member, WorkerSpec


class RayWeights:
    """The newest weights as a Ray object, which each node fetches once."""

    def __init__(self, shared_weights: SharedWeights) -> None:
        self._shared_weights = shared_weights
        self._number = 0
        self._reference: Any = None
        self.puts = 0

    def newest(self) -> Any:
        """Return a reference to (number, bytes of a copy), see `SharedWeights.bytes_of`."""
        shared_weights = self._shared_weights
        put = shared_weights.newest(
            self._number, lambda number: (number, ray.put((number, shared_weights.bytes_of(number))))
        )
        if put is not None:
            self._number, self._reference = put
            self.puts += 1
        assert self._reference is not None, "weights are published before anybody acts"
        return self._reference


Deposit = Callable[[int, FragmentInfo, Any, OnStored], None]
"""Stores a group's fragment, given a reference to its arrays."""


class RemoteNode(RemoteWorker):
    """One node; converts changes of its status into messages."""

    def __init__(
        self,
        spec: WorkerSpec[NodeArgs],
        config: Config,
        place: Place,
        post: Post,
        weights: RayWeights,
        deposit: Deposit | None,
    ) -> None:
        super().__init__(spec, config, place, post)
        self._supervision = config.supervision.model_copy(update={"min_actors": 1})
        self._weights, self._deposit = weights, deposit
        self._past_faults: Counter[str] = Counter()
        self._news: NodeStatus | None = None
        self._groups = {group: GroupStatus(0, 0, (), True, False) for group in spec.groups}
        self._turns = Reorder()

    def _create(self, incarnations: Mapping[int, int], options: dict[str, Any]) -> Any:
        mine = {group: incarnations[group] for group in self.spec.groups}
        self._past_faults.update(self._news.faults if self._news else {})
        self._news, self._turns = None, Reorder()
        self._groups = {group: GroupStatus(incarnation, 0, (), True, False) for group, incarnation in mine.items()}
        node = NodeSpec(self.name, self.spec.args.for_incarnations(incarnations), mine, self._supervision)
        under_way = 4 * len(mine) + 16  # calls that wait for a fragment must not block others
        return ray.remote(Node).options(max_concurrency=under_way, **options).remote(node, self._weights.newest())

    def _began(self, line: Line) -> None:
        line.call(self._hear_beat, line.handle.beat.remote())

    def _hear_beat(self, found: tuple[NodeStatus, list[str]]) -> None:
        news, printed = found
        self._turns.came(news.number, lambda: self._take_beat(news, printed))

    def _take_beat(self, news: NodeStatus, printed: list[str]) -> None:
        self._note_printed(printed)
        self._take_in(news)
        if self.line is not None and news.failure is None:
            self._began(self.line)
        self._hear()

    def _take_in(self, news: NodeStatus) -> None:
        """Convert the difference to the last status into messages, and forward the node's own messages."""
        for group, status in news.groups.items():
            self._compare(group, self._groups[group], status)
        self._news, self._groups = news, news.groups
        self.ever_ready = self.ever_ready or news.ready
        self._messages += [Notice(line) for line in news.notices]
        self._printed += [replace(line, worker=f"{self.name} {line.worker}") for line in news.printed]
        self._messages += news.evaluations
        if news.dropped:
            self._messages.append(EpisodesDropped(news.dropped, ()))
        if news.episodes:
            self._messages.append(EpisodesEnded(tuple(news.episodes)))
        self._note_failure(news.failure)

    def _compare(self, group: int, before: GroupStatus, now: GroupStatus) -> None:
        missed = now.incarnation - before.incarnation
        ended = now.ended[len(now.ended) - missed :]
        self._messages += [IncarnationEnded(group, produced) for produced in ended]
        if before.working != now.working:
            self._messages.append(EnvGroupResumed(group) if now.working else EnvGroupPaused(group))

    def send(self, message: Message) -> None:
        if self.line is None:
            return
        match message:
            case Evaluate(state):
                self.line.handle.evaluate.remote(self._weights.newest(), state)
            case CreditGranted(group, slot):
                lend = self.line.handle.lend.options(num_returns=2)
                self._await_fragment(*lend.remote(Credit(group, slot), self._weights.newest()))

    def _await_fragment(self, report: Any, buffer: Any) -> None:
        """Wait for a fragment, including its arrays unless they go to a shard."""
        assert self.line is not None, "there is somebody who makes it"
        if self._deposit is None:
            self.line.call(self._hear_fragment, report, buffer)
        else:
            self.line.call(lambda found: self._hear_fragment(found, buffer), report)

    def _hear_fragment(self, report: FragmentResult, buffer: Any) -> None:
        self._turns.came(report.news.number, lambda: self._take_fragment(report, buffer))

    def _take_fragment(self, report: FragmentResult, buffer: Any) -> None:
        """Handle the result of a credit; `buffer` holds the arrays, or a reference if they go to a shard."""
        self._take_in(report.news)
        group, slot, made = report.credit.group, report.credit.slot, report.made
        if made is None:
            self._messages.append(CreditsReturned(group, (slot,)))
        elif self._deposit is None:
            self._messages.append(FragmentReceived(group, slot, made.actor_id, made.sequence, buffer))
        else:
            self._messages.append(SlotFreed(group, slot))
            self._deposit(group, made, buffer, partial(self._settled, made))
        self._hear()

    def _settled(self, made: FragmentInfo, stored: int | None) -> None:
        if stored is None:
            self._messages.append(StepsLost(made.actor_id, made.steps))
        else:
            self._messages.append(StepsStored(made.actor_id, stored))
        self._hear()

    @property
    def produced(self) -> dict[int, int]:
        return {group: status.produced for group, status in self._groups.items()}

    @property
    def members(self) -> list[Member]:
        known = [] if self._news is None or self.line is None else self._news.vitals
        return [Member(one.kind, f"{self.name} {one.name}", one.cells) for one in known]

    @property
    def faults(self) -> dict[str, int]:
        return dict(self._past_faults + Counter(self._news.faults if self._news else {}))

    @property
    def groups_left(self) -> int:
        return 0 if self.given_up else sum(not status.given_up for status in self._groups.values())
