"""A thread that scores candidates while the learner learns."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from starling.replay.mixture import Candidates
from starling.runtime.candidate_scorer import CandidateScorer
from starling.runtime.shared_weights import WeightReader
from starling.types import NDArray

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
