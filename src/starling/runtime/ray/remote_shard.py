"""The driver's side of a replay shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError

from starling.config.schema import Config
from starling.runtime.event_queue import Post
from starling.runtime.messages import Message, Notice
from starling.runtime.ray.line import Line
from starling.runtime.ray.placement import Place
from starling.runtime.ray.remote import RemoteWorker
from starling.runtime.ray.shard import Empty, Holds, Listed, Shard, ShardArgs, ShardSpec, attached, sendable
from starling.runtime.worker import Member, WorkerSpec
from starling.state_io import Segment, SegmentLostError
from starling.types import Keys, NDArray, Sample

BEAT_SECONDS = 1.0
STATE_TIMEOUTS = 60
"""Number of `ray.timeout`s that a shard may take for its state, in which it answers nothing else."""
NOTHING = Holds((), {})


class FarSegment(Segment):
    """A segment whose bytes stay in the shard until they are written to disk."""

    def __init__(self, handle: Any, listed: Listed) -> None:
        super().__init__(listed.size, listed.name)
        self._handle, self._number = handle, listed.number

    def read(self) -> bytes:
        try:
            return bytes(ray.get(self._handle.read.remote(self._number)))
        except RayError as error:
            raise SegmentLostError("a shard of the replay was lost while it was saved") from error

    def release(self) -> None:
        self._handle.release.remote(self._number, self.name)


class PendingState:
    """The state that a shard was asked for."""

    def __init__(self, handle: Any, seconds: float) -> None:
        self._handle, self._end = handle, time.monotonic() + seconds
        self.reference = handle.get_state.remote()

    def wait(self) -> dict[str, Any] | None:
        """Return the state; None if the shard is lost."""
        try:
            state = ray.get(self.reference, timeout=max(0.0, self._end - time.monotonic()))
        except RayError:
            return None
        return attached(state, lambda listed: FarSegment(self._handle, listed))


_reading = threading.Lock()
"""Held by the shard that reads its saved state, since each state fills memory."""


class RemoteShard(RemoteWorker):
    """One replay shard; after a loss it restarts from the last saved state."""

    def __init__(
        self,
        spec: WorkerSpec[ShardArgs],
        config: Config,
        place: Place,
        post: Post,
        env_index: NDArray,
        saved: Callable[[], dict[str, Any] | None],
    ) -> None:
        super().__init__(spec, config, place, post)
        self.env_index = env_index
        self._saved = saved
        self.holds = NOTHING
        self.ended: Callable[[RemoteShard], None] = lambda shard: None  # called when its pending calls are lost
        self._next_beat: float | None = None  # None: one is pending
        self._state: dict[str, Any] | None = None  # with which it starts
        self._taking_state_until = 0.0

    def start(self, incarnations: Mapping[int, int], hear: Callable[[], None], crashed: Callable[[], None]) -> None:
        """Start it once another thread has read its saved state, which may be large."""
        self.start_at = None
        start = partial(super().start, incarnations, hear, crashed)
        threading.Thread(target=self._read_state, args=(start,), name=f"state of {self.name}", daemon=True).start()

    def _read_state(self, start: Callable[[], None]) -> None:
        def fail(error: BaseException) -> NoReturn:
            raise error

        try:
            with _reading:
                state = self._saved()
                self._state = state and sendable(state)
        except BaseException as error:
            self._post(partial(fail, error))
        else:
            self._post(start)

    def _create(self, incarnations: Mapping[int, int], options: dict[str, Any]) -> Any:
        state, self._state = self._state, None
        plan = ShardSpec(self.spec.args, self.env_index, state)
        if self._starts > 1:
            begins = "from the newest checkpoint" if state else "empty"
            self._messages.append(Notice(f"{self.name} starts {begins}"))
        return ray.remote(Shard).options(**options).remote(plan)

    def _began(self, line: Line) -> None:
        self._next_beat = None
        line.call(self._take_beat, line.handle.beat.remote())

    def _take_beat(self, holds: Holds) -> None:
        self.ever_ready, self.holds = True, holds
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self._hear()

    def poll(self) -> None:
        if self.line is not None and self._next_beat is not None and time.monotonic() >= self._next_beat:
            self._began(self.line)
        super().poll()

    def reap(self) -> str:
        reason = super().reap()
        self._taking_state_until = 0.0
        self.holds = NOTHING
        self.ended(self)
        return reason

    def send(self, message: Message) -> None:
        raise AssertionError("nobody sends a shard messages")

    def insert(self, fragment: Empty, buffer: Any, done: Callable[[int, Holds], None]) -> bool:
        """Insert a fragment, given a reference to its arrays; return False if the shard is not running."""
        if self.line is None:
            return False

        def stored(found: tuple[int, Holds]) -> None:
            self.holds = found[1]
            done(*found)

        self.line.call(stored, self.line.handle.insert.remote(fragment, buffer))
        return True

    def sample(self, n: int, done: Callable[[Sample | None], None]) -> None:
        assert self.line is not None, "only who is there is asked"
        self.line.call(done, self.line.handle.sample.remote(n))

    def reprioritize(self, keys: Keys, priorities: NDArray) -> None:
        if self.line is not None:
            self.line.handle.reprioritize.remote(keys, priorities)

    @property
    def silent_seconds(self) -> float:
        return 0.0 if time.monotonic() < self._taking_state_until else super().silent_seconds

    def request_state(self) -> PendingState | None:
        """Ask for the current state of its tables; None if the shard is lost."""
        if self.line is None:
            return None

        def taken(state: Any) -> None:
            self._taking_state_until = 0.0

        seconds = STATE_TIMEOUTS * self.timeout
        self._taking_state_until = time.monotonic() + seconds
        pending = PendingState(self.line.handle, seconds)
        self.line.call(taken, pending.reference)
        return pending

    @property
    def produced(self) -> dict[int, int]:
        return {}

    @property
    def members(self) -> list[Member]:
        return []
