"""The driver's side of a replay shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

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

    def _create(self, incarnations: Mapping[int, int], options: dict[str, Any]) -> Any:
        state = self._saved()
        plan = ShardSpec(self.spec.args, self.env_index, state and sendable(state))
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

    def get_state(self) -> dict[str, Any] | None:
        """Return the current state of its tables; None if the shard is lost."""
        if self.line is None:
            return None
        handle = self.line.handle
        try:
            state = ray.get(handle.get_state.remote(), timeout=60 * self.timeout)
        except RayError:
            return None
        return attached(state, lambda listed: FarSegment(handle, listed))

    @property
    def produced(self) -> dict[int, int]:
        return {}

    @property
    def members(self) -> list[Member]:
        return []
