"""The channel between env loops and an inference server: observations and actions in shared memory, tokens in pipes."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from starling import tree
from starling.actor.inference import Arrival
from starling.runtime.link import PipeEnd, PipeEnds, pipe, write_token
from starling.runtime.messages import BrokenMessageError
from starling.runtime.shared_memory import AnonymousSharedMemory, size_of
from starling.types import ArraySpec, EnvStep, Layout, Tree

_TOKEN = struct.Struct("<qqq")  # group, incarnation, number of the step
_FLAG, _REWARD = np.dtype(np.bool_), np.dtype(np.float32)


def _decoded(token: bytes) -> tuple[int, int, int]:
    """Group, incarnation, and number of a step; a token is written in one piece."""
    if len(token) != _TOKEN.size:
        raise BrokenMessageError(f"a token of {len(token)} bytes")
    group, incarnation, number = _TOKEN.unpack(token)
    return group, incarnation, number


def _place_spec(layout: Layout, num_envs: int) -> tuple[EnvStep, Tree]:
    """The arrays of one group: a step and actions, as `ArraySpec`."""

    def batched(spec: ArraySpec) -> ArraySpec:
        return ArraySpec((num_envs, *spec.shape), spec.dtype)

    flag = ArraySpec((num_envs,), _FLAG)
    specs: dict[str, Any] = {
        "obs": tree.map(batched, layout.obs),
        "first": flag,
        "reward": ArraySpec((num_envs,), _REWARD),
        "terminated": flag,
        "truncated": flag,
        "valid": flag,
        "cut_short": flag,
    }
    return EnvStep(**specs), tree.map(batched, layout.action)


@dataclass(frozen=True)
class LoopPort:
    """An env loop's end, as its process gets it."""

    shared_memory: AnonymousSharedMemory
    offset: int
    layout: Layout
    num_envs: int
    ring: PipeEnd
    answer: PipeEnd


@dataclass(frozen=True)
class ServerPort:
    """The server's end, as its process gets it."""

    shared_memory: AnonymousSharedMemory
    offsets: dict[int, int]
    layout: Layout
    num_envs: dict[int, int]  # by group
    bell: PipeEnd
    answers: PipeEnds


class SharedInferenceChannel:
    """Memory and pipes between all env loops and their server.

    `num_envs` is given by group. The main process keeps every end open, so that a loop or the server can be replaced.
    All loops ring one bell: a token is far smaller than what a pipe takes in one piece.
    """

    def __init__(self, layout: Layout, num_envs: Mapping[int, int]) -> None:
        self._layout, self._num_envs = layout, dict(num_envs)
        sizes = [size_of(_place_spec(layout, n)) for n in num_envs.values()]
        self._offsets = dict(zip(num_envs, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self._slab = AnonymousSharedMemory(sum(sizes))
        self._bell = pipe()
        self._answers = {group: pipe() for group in num_envs}

    def loop_port(self, group: int) -> LoopPort:
        offset, num_envs, answer = self._offsets[group], self._num_envs[group], self._answers[group][0]
        return LoopPort(self._slab, offset, self._layout, num_envs, self._bell[1], answer)

    def server_port(self) -> ServerPort:
        answers = PipeEnds({group: pair[1] for group, pair in self._answers.items()})
        return ServerPort(self._slab, self._offsets, self._layout, self._num_envs, self._bell[0], answers)


class LoopSide:
    """An env loop's end: acts like a policy whose actions may arrive later."""

    def __init__(self, port: LoopPort, group: int, incarnation: int) -> None:
        self._step, self._actions = port.shared_memory.arrays(_place_spec(port.layout, port.num_envs), port.offset)
        self._ring, self._answer = port.ring, port.answer
        self._group, self._birth, self._number = group, incarnation, 0

    def observe(self, index: int, step: EnvStep) -> None:
        tree.map(np.copyto, self._step, step)
        self._number += 1
        write_token(self._ring, _TOKEN.pack(self._group, self._birth, self._number))

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        while True:
            try:
                token = os.read(self._answer.fd, _TOKEN.size)
            except BlockingIOError:
                return [None]
            if not token:
                raise EOFError("the inference server is gone")
            if _decoded(token) == (self._group, self._birth, self._number):
                return [self._actions]  # any other was meant for an earlier incarnation

    def fileno(self) -> int:
        return self._answer.fd


class ServerSide:
    """The server's end."""

    def __init__(self, port: ServerPort) -> None:
        self._places = {
            group: port.shared_memory.arrays(_place_spec(port.layout, port.num_envs[group]), offset)
            for group, offset in port.offsets.items()
        }
        self._bell, self._answers = port.bell, port.answers
        self._tokens: dict[int, bytes] = {}

    def arrivals(self) -> list[Arrival]:
        try:
            data = os.read(self._bell.fd, _TOKEN.size * 1024)
        except BlockingIOError:
            return []
        found: dict[int, Arrival] = {}
        for offset in range(0, len(data), _TOKEN.size):
            token = data[offset : offset + _TOKEN.size]
            group, incarnation, _ = _decoded(token)
            if group not in self._places:
                raise BrokenMessageError(f"a token of group {group}, which this server does not act for")
            self._tokens[group] = token
            found[group] = Arrival(group, incarnation, self._places[group][0])
        return list(found.values())

    def answer(self, group: int, actions: Tree) -> None:
        tree.map(np.copyto, self._places[group][1], actions)
        write_token(self._answers[group], self._tokens[group])

    def fileno(self) -> int:
        return self._bell.fd
