"""The roles of worker processes that act: one step of each, the messages it sends, and the events it waits for.

The role of a learner is in `rank.py`; `worker_main.py` is the process around any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starling.actor.env_loop import EnvLoop
from starling.actor.evaluator import Evaluation, Evaluator
from starling.actor.inference import InferenceServer
from starling.actor.usage import WAIT_IN, WAIT_OUT
from starling.runtime.experience_sink import LinkSink
from starling.runtime.link import Link
from starling.runtime.messages import EpisodesDropped, EpisodesEnded, Evaluate, EvaluationDone
from starling.runtime.shared_weights import WeightReader


class EnvLoopWorker:
    """An env loop; its actor core is in the same process or in an inference server."""

    def __init__(self, loop: EnvLoop, link: Link, phase: str, watched: list[Any]) -> None:
        self._loop, self._link = loop, link
        self._dropped = 0  # reported so far
        self._phase, self._watched = phase, watched

    def step(self) -> bool:
        moved = self._loop.step()
        finished = self._loop.finished()
        if finished:
            self._link.send(EpisodesEnded(tuple(finished)))
        notices = self._loop.notices()
        if notices or self._loop.dropped > self._dropped:
            self._link.send(EpisodesDropped(self._loop.dropped - self._dropped, tuple(notices)))
            self._dropped = self._loop.dropped
        return moved

    def wait(self) -> tuple[str, list[Any], float | None]:
        return self._phase, self._watched, None

    def close(self) -> None:
        self._loop.env.close()


class InferenceWorker:
    """An inference server."""

    def __init__(self, server: InferenceServer, sink: LinkSink, watched: list[Any]) -> None:
        self._server, self._sink, self._watched = server, sink, watched

    def step(self) -> bool:
        for group in self._sink.lost_groups():
            self._server.forget(group)
            self._sink.give_back(group)
        return self._server.step()

    def wait(self) -> tuple[str, list[Any], float | None]:
        return (WAIT_OUT if self._server.blocked else WAIT_IN), self._watched, self._server.patience

    def close(self) -> None: ...


class EvaluatorWorker:
    """An evaluator: evaluates the newest weights on request, one env step at a time.

    What one evaluation leaves to the next goes to the main process and comes back, so that it outlives this one.
    """

    def __init__(self, evaluator: Evaluator, weights: WeightReader, link: Link) -> None:
        self._evaluator, self._weights, self._link = evaluator, weights, link
        self._evaluation: Iterator[Evaluation | None] | None = None  # the current one
        self._env_steps = 0  # when the weights that it evaluates were published

    def step(self) -> bool:
        for message in self._link.receive():
            if isinstance(message, Evaluate):
                self._env_steps = self._weights.refresh().env_steps
                self._evaluation = self._evaluator.evaluate(message.state)
        self._link.raise_if_ended()
        if self._evaluation is None:
            return False
        done = next(self._evaluation)
        if done is not None:
            self._link.send(EvaluationDone({**done.row, "eval/env_steps": self._env_steps}, done.state))
            self._evaluation = None
        return True

    def wait(self) -> tuple[str, list[Any], float | None]:
        return WAIT_IN, [self._link], None

    def close(self) -> None:
        self._evaluator.env.close()
