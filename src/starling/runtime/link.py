"""A two-way line between the main process and one worker: small messages over two pipes.

No lock is shared and nothing is pickled. A peer that dies, at whatever moment, is an end of file behind its last whole
message.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any

_LENGTH = struct.Struct("<I")
LARGEST = 2**26
"""Bytes of a message; far more than any of ours has, arrays and states lie in shared memory."""
SEND_SECONDS = 10.0
"""How long a peer may take to make room for a message."""


class BrokenMessageError(ValueError):
    """Bytes from another process that are none of our messages."""


def decode(data: bytes | bytearray) -> dict[str, Any]:
    """The message that was sent as these bytes, without their length.

    Raises:
        BrokenMessageError: They are not a JSON object.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenMessageError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenMessageError(f"a message is an object and not of type {type(message).__name__}")
    return message


class PipeEnd:
    """One end of a pipe; it travels to a child of ours when that is started, by its descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, state: Any) -> None:
        self.fd = state.detach()

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = close


def pipe() -> tuple[PipeEnd, PipeEnd]:
    """The end to read and the end to write."""
    reading, writing = os.pipe()
    return PipeEnd(reading), PipeEnd(writing)


def wait_readable(ends: list[Any], timeout: float | None) -> list[Any]:
    """Those of `ends` (descriptors, or things that have one) with something to read or at their end."""
    poll = select.poll()
    by_fd = {end if isinstance(end, int) else end.fileno(): end for end in ends}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]


class Link:
    """One end of the line."""

    def __init__(self, reading: PipeEnd, writing: PipeEnd) -> None:
        self._reading, self._writing = reading, writing
        self._buffer = bytearray()
        self.ended = False  # the peer is gone, or nothing that it sends can be understood any more
        self.broken: str | None = None  # what was wrong with its bytes

    def fileno(self) -> int:
        return self._reading.fd

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; False where the peer is gone or has stopped reading."""
        data = json.dumps(message).encode()
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        while len(rest):
            try:
                rest = rest[os.write(self._writing.fd, rest) :]
            except BlockingIOError:
                if not _writable(self._writing.fd, SEND_SECONDS):
                    return False
            except (BrokenPipeError, OSError):
                return False
        return True

    def receive(self, check: Callable[[dict[str, Any]], None] = lambda message: None) -> list[dict[str, Any]]:
        """The whole messages that have arrived; never waits.

        Nothing is received after one that is `broken`, or that `check` refuses with a BrokenMessageError.
        """
        while not self.ended:
            try:
                data = os.read(self._reading.fd, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not data
            self._buffer += data
            if len(self._buffer) > LARGEST:
                break  # take out what is whole before reading on
        return list(self._messages(check))

    def _messages(self, check: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if length <= LARGEST and len(self._buffer) < end:
                return
            try:
                if length > LARGEST:
                    raise BrokenMessageError(f"a message of {length:,} bytes")
                message = decode(self._buffer[_LENGTH.size : end])
                check(message)
            except BrokenMessageError as error:
                self.ended, self.broken = True, str(error)
                self._buffer.clear()
                return
            del self._buffer[:end]
            yield message

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


def _writable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(timeout * 1000))


def link() -> tuple[Link, Link]:
    """Both ends of a new line."""
    to_one, from_other = pipe()
    to_other, from_one = pipe()
    return Link(to_one, from_one), Link(to_other, from_other)
