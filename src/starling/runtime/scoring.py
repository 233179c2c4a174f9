"""Scoring beside everything else: a thread that ranks candidates while the learner learns and the hub deals."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from starling.replay.mixture import Draft
from starling.runtime.loader import Loader
from starling.runtime.weights import WeightReader
from starling.types import NDArray

Scored = Callable[[Draft, dict[int, NDArray]], None]


class Scorer:
    """A loader in a thread of its own, in the process that holds the store: candidates are handed over, not copied."""

    def __init__(self, loader: Loader, weights: WeightReader) -> None:
        self._loader, self._weights = loader, weights
        self._drafts: queue.SimpleQueue[Draft | None] = queue.SimpleQueue()  # None: no more will come
        self._thread: threading.Thread | None = None
        self.metrics = loader.metrics

    def start(self, scored: Scored, failed: Callable[[BaseException], None]) -> None:
        """Begin; every draft comes back through `scored`, in the order in which they were put."""

        def serve() -> None:
            try:
                while (draft := self._drafts.get()) is not None:
                    self._weights.refresh()
                    scored(draft, self._loader.score(draft))
            except BaseException as error:
                failed(error)

        self._thread = threading.Thread(target=serve, name="scorer", daemon=True)
        self._thread.start()

    def put(self, draft: Draft) -> None:
        self._drafts.put(draft)

    def stop(self) -> None:
        self._drafts.put(None)
        if self._thread is not None:
            self._thread.join()
