"""Scores the candidates of attentive and elite replay with the current network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from starling import tree
from starling.actor.usage import BUSY, WAIT_IN, Shares, Usage, read
from starling.algos.base import Algorithm
from starling.replay.mixture import Candidates
from starling.replay.spec import TableSpec
from starling.replay.store import Store
from starling.types import NDArray, Sample


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
        if not candidates.unranked:
            return {}
        self._usage.enter(BUSY)
        device = next(self.model.parameters()).device
        recent = tree.to_torch(candidates.parts[self._queue].trajectory, device)
        with torch.inference_mode():
            distances = {i: self._distances(i, candidates.parts[i], recent) for i in candidates.unranked}
        self._usage.add("calls", 1)
        self._usage.enter(WAIT_IN)
        return distances

    def sample(self, store: Store) -> Sample | None:
        """Draw candidates from a store in the same thread, score them, and select a batch; None if there is none."""
        candidates = store.draw_candidates()
        return None if candidates is None else store.select(candidates, self.score(candidates))

    def _distances(self, table: int, part: Sample, recent: Any) -> NDArray:
        candidates = tree.to_torch(part.trajectory, recent.valid.device)
        scores: NDArray = self._algorithm.score(self.model, table, candidates, recent).cpu().numpy()
        return scores

    def metrics(self) -> dict[str, float]:
        """Share of the time spent scoring since the last call, and milliseconds per batch."""
        shares, now = self._shares.look("scoring", self._usage.cells), read(self._usage.cells)
        (calls, busy), self._before = self._before, (now["calls"], now[BUSY])
        if not shares or now["calls"] == calls:
            return {}
        each = (now[BUSY] - busy) / (now["calls"] - calls) / 1e6
        return {"time/scoring/busy": round(shares[BUSY], 3), "time/scoring/ms": round(each, 2)}
