"""Messages between a hub and its workers, and their encoding as JSON for the pipes of `runtime.link`.

A worker on another machine is reached through Ray, with the messages of `runtime.ray.messages` in between; the driver
converts those to the classes here, so a hub sees no difference. In messages, `group` is the index of a group of envs,
and `actor_id` one incarnation of that group. A `LearnerGroup`, the learners that train together, is in no message.

A message of an unknown class, or with wrong fields, ends the link: `decode` raises `BrokenMessageError`, and `Link`
keeps its text in `broken`. The main process then kills the worker; a worker raises the error (`Link.raise_if_ended`).
A message of a known class at a receiver that has no use for it, such as `Evaluate` at a learner, is a bug of ours: a
hub, a node, and a learner raise `BrokenMessageError` with its name; workers that act or evaluate ignore it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from starling.types import Episode


class BrokenMessageError(ValueError):
    """Bytes from another process that are none of the messages that this one accepts."""


@dataclass(frozen=True)
class Message:
    """Base class. Fields are numbers, strings, flags, tuples of these, `Episode`, and dicts of plain values."""


# From every worker.


@dataclass(frozen=True)
class Ready(Message):
    """The worker has built its role."""


@dataclass(frozen=True)
class Fault(Message):
    """The worker dies of an exception."""

    text: str
    kind: str  # name of the exception's class
    details: str  # its traceback


@dataclass(frozen=True)
class Notice(Message):
    """A line for the user."""

    text: str


# From workers that act.


@dataclass(frozen=True)
class FragmentReady(Message):
    """A fragment lies in its slot."""

    group: int
    slot: int
    actor_id: int
    sequence: int


@dataclass(frozen=True)
class CreditsReturned(Message):
    """The credits of a group are not used, since its env loop is gone."""

    group: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class EpisodesEnded(Message):
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class EpisodesDropped(Message):
    """Episodes in which an env returned values that are not finite, with lines for the user."""

    count: int
    notices: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationDone(Message):
    row: dict[str, Any]  # metrics
    state: dict[str, Any]  # for the next evaluation


# From one of several learners.


@dataclass(frozen=True)
class BatchLearned(Message):
    """A batch was learned from; new priorities, if any, lie in its slot."""

    slot: int
    with_priorities: bool
    updates: int


@dataclass(frozen=True)
class LearnersJoined(Message):
    """The rank has joined the others and trains with them."""

    updates: int


@dataclass(frozen=True)
class RankWaits(Message):
    """The rank waits until it can join the other learners."""

    updates: int
    optimizer_steps: int  # of the update in progress
    late: bool  # it waited too long for another rank
    why: str | None = None  # why it lost the other learners; None: it has just started


@dataclass(frozen=True)
class StateWritten(Message):
    """The state that was asked for lies in the rank's state buffer."""

    updates: int


@dataclass(frozen=True)
class LearnerMetrics(Message):
    metrics: dict[str, Any]


@dataclass(frozen=True)
class RendezvousValue(Message):
    """A value that one rank posts for the others; also sent to these."""

    attempt: int
    key: str
    value: str  # base64


# To workers.


@dataclass(frozen=True)
class CreditGranted(Message):
    """A fragment may be written into this slot."""

    group: int
    slot: int


@dataclass(frozen=True)
class EnvGroupLost(Message):
    """The env loop of a group is gone: return its credits with `CreditsReturned`. Sent to its inference server."""

    group: int


@dataclass(frozen=True)
class Evaluate(Message):
    """Evaluate the newest weights, given what the last evaluation left."""

    state: dict[str, Any]


@dataclass(frozen=True)
class BatchReady(Message):
    """A batch lies in this slot; so many env steps have arrived at the hub."""

    slot: int
    env_steps: int


@dataclass(frozen=True)
class JoinLearners(Message):
    """All learners meet for the n-th time, `attempt`, and take over the state of the rank `source`."""

    attempt: int
    source: int
    env_steps: int


@dataclass(frozen=True)
class StateRequest(Message):
    pass


@dataclass(frozen=True)
class MetricsRequest(Message):
    pass


# Within the main process: what happened on another machine. Never encoded.


@dataclass(frozen=True)
class FragmentReceived(Message):
    """A fragment with its arrays."""

    group: int
    slot: int
    actor_id: int
    sequence: int
    buffer: Any  # FragmentBuffer


@dataclass(frozen=True)
class SlotFreed(Message):
    """The fragment in this slot went to a shard."""

    group: int
    slot: int


@dataclass(frozen=True)
class StepsStored(Message):
    actor_id: int
    steps: int


@dataclass(frozen=True)
class StepsLost(Message):
    actor_id: int
    steps: int


@dataclass(frozen=True)
class IncarnationEnded(Message):
    """An env loop is gone after so many steps."""

    group: int
    steps: int


@dataclass(frozen=True)
class EnvGroupPaused(Message):
    """The env loop of a group, or its policy, is not running: lend it no slots."""

    group: int


@dataclass(frozen=True)
class EnvGroupResumed(Message):
    """Both the env loop of a group and its policy are running again."""

    group: int


@dataclass(frozen=True)
class RankGone(Message):
    """The process of a rank has ended."""


FROM_WORKERS: tuple[type[Message], ...] = (
    *(Ready, Fault, Notice, FragmentReady, CreditsReturned, EpisodesEnded, EpisodesDropped, EvaluationDone),
    *(BatchLearned, LearnersJoined, RankWaits, StateWritten, LearnerMetrics, RendezvousValue),
)
TO_WORKERS: tuple[type[Message], ...] = (
    *(CreditGranted, EnvGroupLost, Evaluate, BatchReady, JoinLearners, StateRequest, MetricsRequest, RendezvousValue),
)


def encode(message: Message) -> bytes:
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    return json.dumps([type(message).__name__, values], default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Episode):
        return [value.env_index, value.total, value.length]
    raise TypeError(f"{type(value).__name__} is not part of a message")


def decode(data: bytes | bytearray, accepted: Sequence[type[Message]]) -> Message:
    """The message of these bytes.

    Raises:
        BrokenMessageError: They are not a message of an accepted class.
    """
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenMessageError(f"not JSON: {error}") from error
    match decoded:
        case [str(name), dict(values)]:
            for kind in accepted:
                if kind.__name__ == name:
                    return _build(kind, values)
    raise BrokenMessageError(f"unknown message {_excerpt(decoded)}")


def _build(kind: type[Message], values: dict[str, Any]) -> Message:
    checks = _CHECKS[kind]
    if values.keys() != checks.keys():
        raise BrokenMessageError(f"{kind.__name__} with the fields {_excerpt(sorted(values))}")
    try:
        return kind(**{name: check(values[name]) for name, check in checks.items()})
    except TypeError as error:
        raise BrokenMessageError(f"{kind.__name__}: {error}") from None


Check = Callable[[Any], Any]
"""Converts a decoded value to a field's type; raises TypeError if it has another."""


def _checks_of(kind: type[Message]) -> dict[str, Check]:
    hints = get_type_hints(kind)
    return {field.name: _check(hints[field.name]) for field in fields(kind)}


def _check(hint: Any) -> Check:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return _of(*(part for part in parts))
    if origin is tuple:
        return _tuple_of(_check(parts[0]))
    if hint is Episode:
        return _episode
    if hint is float:
        return _of(int, float)
    return _of(dict if origin is dict else hint)


def _of(*kinds: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"a value of type {type(value).__name__}")
        return value

    return check


def _tuple_of(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        return tuple(map(item, _of(list)(value)))

    return check


def _episode(value: Any) -> Episode:
    env_index, total, length = _numbers(value)
    return Episode(_of(int)(env_index), float(total), _of(int)(length))


def _numbers(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) != 3:
        raise TypeError("an episode of other than three numbers")
    return [_of(int, float)(number) for number in value]


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_CHECKS = {kind: _checks_of(kind) for kind in {*FROM_WORKERS, *TO_WORKERS}}
