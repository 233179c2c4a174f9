"""The loader: scores candidates with weights that it reads as an actor does, so that a table can rank them."""

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
from starling.types import Keys, NDArray, Sample


class CandidateScorer:
    """Says how far off the candidates of the candidates are; what that costs is measured."""

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

    def _distances(self, table: int, part: Sample, recent: Any) -> NDArray:
        candidates = tree.to_torch(part.trajectory, recent.valid.device)
        scores: NDArray = self._algorithm.score(self.model, table, candidates, recent).cpu().numpy()
        return scores

    def metrics(self) -> dict[str, float]:
        """What scoring cost since the last call: the share of the time, and milliseconds a batch."""
        shares, now = self._shares.look("scoring", self._usage.cells), read(self._usage.cells)
        (calls, busy), self._before = self._before, (now["calls"], now[BUSY])
        if not shares or now["calls"] == calls:
            return {}
        each = (now[BUSY] - busy) / (now["calls"] - calls) / 1e6
        return {"time/scoring/busy": round(shares[BUSY], 3), "time/scoring/ms": round(each, 2)}


class RankedSource:
    """A store in the learner's own thread, whose candidates are scored when a batch is asked for."""

    def __init__(self, store: Store, candidate_scorer: CandidateScorer) -> None:
        self._store, self._candidate_scorer = store, candidate_scorer

    @property
    def env_steps(self) -> int:
        return self._store.env_steps

    def sample(self) -> Sample | None:
        candidates = self._store.draw_candidates()
        return None if candidates is None else self._store.select(candidates, self._candidate_scorer.score(candidates))

    def update_priorities(self, keys: Keys, priorities: NDArray | None) -> None:
        self._store.update_priorities(keys, priorities)
