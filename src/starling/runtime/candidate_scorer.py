"""Scores the candidates of attentive and elite replay with the current network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from starling import tree
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage, read
from starling.algos.base import Algorithm
from starling.replay.mixture import Candidates
from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.runtime.shared_weights import WeightReader
from starling.types import NDArray, Resets, Sample


class CandidateScorer:
    """Computes the distance of every candidate; a table then selects by these. Measures what that costs."""

    def __init__(self, algorithm: Algorithm, model: Any, tables: Sequence[TableSpec]) -> None:
        self._algorithm, self.model = algorithm, model
        self._queue = next(i for i, table in enumerate(tables) if table.sampler == "fifo")
        self._usage, self._shares = Usage(), Shares()
        self._usage.enter(WAIT_IN)
        self._before = (0, 0)

    def score(self, candidates: Candidates) -> dict[int, NDArray]:
        """Distances [N] of the candidates of every table that asks for them."""
        if not candidates.tables_to_score:
            return {}
        self._usage.enter(BUSY)
        device = next(self.model.parameters()).device
        scored = dict.fromkeys([self._queue, *candidates.tables_to_score])
        steps = {i: candidates.parts[i].trajectory for i in scored}
        if device.type != "cpu":
            steps = {i: replace(part, resets=Resets.of(part.first)) for i, part in steps.items()}
        seen: Any = tree.to_torch(steps, device)
        with torch.inference_mode():
            scores: Any = {
                i: self._algorithm.score(self.model, i, seen[i], seen[self._queue]) for i in candidates.tables_to_score
            }
        distances: dict[int, NDArray] = tree.to_numpy(scores)
        self._usage.add("calls", 1)
        self._usage.enter(WAIT_IN)
        return distances

    def sample(self, store: Store) -> Sample | None:
        """Draw candidates from a store in the same thread, score them, and select a batch; None if there is none."""
        candidates = store.draw_candidates()
        return None if candidates is None else store.select(candidates, self.score(candidates))

    def metrics(self) -> dict[str, float]:
        """Share of the time spent scoring since the last call, and milliseconds per batch."""
        shares, now = self._shares.look("scoring", self._usage.cells), read(self._usage.cells)
        (calls, busy), self._before = self._before, (now["calls"], now[BUSY])
        if not shares or now["calls"] == calls:
            return {}
        each = (now[BUSY] - busy) / (now["calls"] - calls) / 1e6
        return {"time/scoring/busy": round(shares[BUSY], 3), "time/scoring/ms": round(each, 2)}


Scored = Callable[[Candidates, dict[int, NDArray]], None]


class ScoringThread:
    """Runs a `CandidateScorer` in its own thread of the process that holds the store, so candidates are not copied."""

    def __init__(self, candidate_scorer: CandidateScorer, weights: WeightReader) -> None:
        self._candidate_scorer, self._weights = candidate_scorer, weights
        self._candidates: queue.SimpleQueue[Candidates | None] = queue.SimpleQueue()  # None: no more will come
        self._thread: threading.Thread | None = None
        self.metrics = candidate_scorer.metrics

    def start(self, scored: Scored, failed: Callable[[BaseException], None]) -> None:
        """Start the thread. It calls `scored` for all candidates in the order of `put`, or `failed` once."""

        def serve() -> None:
            try:
                while (candidates := self._candidates.get()) is not None:
                    self._weights.refresh()
                    scored(candidates, self._candidate_scorer.score(candidates))
            except BaseException as error:
                failed(error)

        self._thread = threading.Thread(target=serve, name="scoring", daemon=True)
        self._thread.start()

    def put(self, candidates: Candidates) -> None:
        self._candidates.put(candidates)

    def stop(self) -> None:
        self._candidates.put(None)
        if self._thread is not None:
            self._thread.join()
