"""A two-way line between the main process and one worker: small messages over two pipes.

No lock is shared and nothing is pickled. A peer that dies, at whatever moment, is an end of file behind its last whole
message. Sending never waits either: what does not fit into the pipe is kept here, and follows in order.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

from starling.runtime.messages import FROM_WORKERS, TO_WORKERS, BrokenMessageError, Message, decode, encode

_LENGTH = struct.Struct("<I")
LARGEST = 2**26
"""Largest size of a message in bytes, far above any of ours: arrays and states lie in shared memory."""
MOST_UNSENT = LARGEST
"""Bytes kept for a peer that does not read; with more, it is treated as gone."""


class PipeEnd:
    """One end of a pipe; a starting process gets it as a file descriptor."""

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


class PipeEnds:
    """Ends of pipes, by index; a starting process gets any number of them.

    It would get no more than 256 file descriptors of its own (Python 3.11), so these wait for it in a socket.
    """

    _BATCH = 250  # of one message; the kernel takes at most 253

    def __init__(self, ends: dict[int, PipeEnd]) -> None:
        self._ends = ends
        self._waiting: PipeEnd | None = None  # the socket; kept until the process has it

    def __getitem__(self, index: int) -> PipeEnd:
        return self._ends[index]

    def __getstate__(self) -> Any:
        receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with receiving, sending:
            fds = [end.fd for end in self._ends.values()]
            for start in range(0, len(fds), self._BATCH):
                socket.send_fds(sending, [b"."], fds[start : start + self._BATCH])
            self._waiting = PipeEnd(receiving.detach())
        return list(self._ends), reduction.DupFd(self._waiting.fd)

    def __setstate__(self, state: Any) -> None:
        indices, descriptor = state
        fds: list[int] = []
        with socket.socket(fileno=descriptor.detach()) as waiting:
            while len(fds) < len(indices):
                _, some, _, _ = socket.recv_fds(waiting, 1, self._BATCH)
                if not some:
                    raise EOFError(f"{len(fds)} of {len(indices)} pipes arrived")
                fds += some
        self._ends = {index: PipeEnd(fd) for index, fd in zip(indices, fds, strict=True)}
        self._waiting = None


def pipe() -> tuple[PipeEnd, PipeEnd]:
    """The end to read and the end to write."""
    reading, writing = os.pipe()
    return PipeEnd(reading), PipeEnd(writing)


def wait_readable(ends: list[Any], timeout: float | None) -> list[Any]:
    """The `ends` (file descriptors, or objects with one) that are readable or closed."""
    poll = select.poll()
    by_fd = {end if isinstance(end, int) else end.fileno(): end for end in ends}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)]


def write_token(end: PipeEnd, token: bytes) -> None:
    """Write so few bytes that they go in one piece; waits while the pipe is full."""
    while True:
        try:
            os.write(end.fd, token)
        except BlockingIOError:
            _writable(end.fd, None)
        else:
            return


class Link:
    """One end of the line; it receives messages of the `accepted` classes."""

    def __init__(self, reading: PipeEnd, writing: PipeEnd, accepted: tuple[type[Message], ...]) -> None:
        self._reading, self._writing, self._accepted = reading, writing, accepted
        self._buffer, self._unsent = bytearray(), bytearray()
        self.ended = False  # the peer is gone, or sent an invalid message, after which nothing more is read
        self.broken: str | None = None  # what was wrong with that message

    def fileno(self) -> int:
        return self._reading.fd

    @property
    def unsent(self) -> int:
        """Bytes of messages that did not fit into the pipe yet; every call here tries to send them."""
        return len(self._unsent)

    @property
    def writing(self) -> PipeEnd:
        """The pipe that becomes writable when there is room for what is `unsent`."""
        return self._writing

    def send(self, message: Message) -> bool:
        """Send a message, now or once the peer has read others; False if the peer is gone or has stopped reading."""
        data = encode(message)
        if self._writing.fd < 0:
            return False
        self._unsent += _LENGTH.pack(len(data)) + data
        return self.flush()

    def flush(self, timeout: float = 0.0) -> bool:
        """Send what is `unsent`, and wait for room at most `timeout` seconds; False as for `send`."""
        end = time.monotonic() + timeout
        while self._unsent and self._writing.fd >= 0:
            try:
                del self._unsent[: os.write(self._writing.fd, self._unsent)]
            except BlockingIOError:
                if len(self._unsent) > MOST_UNSENT:
                    self._stop_sending()
                elif not _writable(self._writing.fd, end - time.monotonic()):
                    return True
            except OSError:
                self._stop_sending()
        return self._writing.fd >= 0

    def _stop_sending(self) -> None:
        """Close the pipe, so that the peer finds its end behind the last whole message."""
        self._unsent.clear()
        self._writing.close()

    def receive(self) -> list[Message]:
        """The whole messages that have arrived; never waits. Nothing is received after one that is `broken`."""
        self.flush()
        while not self.ended:
            try:
                data = os.read(self._reading.fd, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not data
            self._buffer += data
            if len(self._buffer) > LARGEST:
                break  # take out what is whole before reading on
        return list(self._messages())

    def _messages(self) -> Iterator[Message]:
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if length <= LARGEST and len(self._buffer) < end:
                return
            try:
                if length > LARGEST:
                    raise BrokenMessageError(f"a message of {length:,} bytes")
                message = decode(self._buffer[_LENGTH.size : end], self._accepted)
            except BrokenMessageError as error:
                self.ended, self.broken = True, str(error)
                self._buffer.clear()
                return
            del self._buffer[:end]
            yield message

    def raise_if_ended(self) -> None:
        """For workers, whose peer is the main process.

        Raises:
            EOFError: The main process is gone, and the worker ends without a word.
            BrokenMessageError: The main process sent an invalid message, a fault that the worker reports.
        """
        if self.broken is not None:
            raise BrokenMessageError(f"the main process sent an invalid message ({self.broken})")
        if self.ended:
            raise EOFError("the main process is gone")

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


def _writable(fd: int, timeout: float | None) -> bool:
    """Return True if a pipe has room or no reader."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))


def link() -> tuple[Link, Link]:
    """Both ends of a new line: the main process's and the worker's."""
    to_main, from_worker = pipe()
    to_worker, from_main = pipe()
    return Link(to_main, from_main, FROM_WORKERS), Link(to_worker, from_worker, TO_WORKERS)
