"""`TableSpec`: the experience that an algorithm asks for. Algorithms see no other part of `replay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starling.errors import UserError

Storage = Literal["ring", "slots"]
Codec = Literal["none", "zstd"]
Selection = Literal["nearest", "spread", "least_sampled", "grouped"]


@dataclass(frozen=True)
class TableSpec:
    """One replay table or queue.

    `ring` stores every step once and samples sequences that never cross the end of an episode; `slots` stores whole
    fragments.
    """

    name: str
    storage: Storage
    length: int  # T of a sampled sequence
    batch: int  # items in a batch
    capacity: int  # env steps (ring) or fragments (slots)
    sampler: str = "uniform"  # fifo, uniform, prioritized, ranked, or package.module:Class (replay/samplers.py)
    period: int = 1  # ring: steps between the starts of two sequences
    burn_in: int = 0  # ring: first steps without a loss; a sequence has valid steps after them, or starts an episode
    fragment: int = 1  # steps that an actor collects per insert; slots: equal to length
    min_size: int = 1  # items (ring: steps) before the first batch
    max_times_sampled: int = 1  # fifo
    buffer: int = 1  # fifo: batches that take turns until each was sampled max_times_sampled times
    updates_per_step: float | None = None  # batches per inserted env step; None: as many as the sampler allows
    max_lag: int | None = None  # batches that actors may run ahead; 0: synchronous, they wait for the new weights
    priority_exponent: float = 0.6  # prioritized: P(i) ~ p_i ** exponent
    candidate_factor: float = 1.0  # ranked: candidates per selected item
    anneal: float | None = None  # ranked: the factor falls to 1 over this fraction of the run; None: constant
    selection: Selection = "nearest"  # ranked: which candidates are selected, given their distances
    contest: int = 0  # ranked, slots: if full, evict the farthest of this many items; 0: the oldest
    codec: Codec = "none"  # ring: compression of observations
    reads_past_end: bool = True  # ring: the loss reads observations after a termination; if not, frame stacks cost less
    share: float = 1.0  # of the batch, if several tables fill it

    def __post_init__(self) -> None:
        positive = (
            "length",
            "batch",
            "capacity",
            "period",
            "fragment",
            "min_size",
            "max_times_sampled",
            "buffer",
            "candidate_factor",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise UserError(f"table {self.name!r}: {name} must be at least 1, not {getattr(self, name)}")
        if self.storage == "slots" and self.fragment != self.length:
            raise UserError(f"table {self.name!r}: slots keep fragments whole, so fragment must equal length")
        if not 0 <= self.burn_in < self.length:
            raise UserError(f"table {self.name!r}: burn_in must be at least 0 and below length {self.length}")
        if self.updates_per_step is not None and self.updates_per_step <= 0:
            raise UserError(f"table {self.name!r}: updates_per_step must be above 0")

    def candidates_for(self, n: int, fraction: float) -> int:
        """Number of candidates for `n` items when `fraction` of the run is over."""
        gone = 0.0 if self.anneal is None else min(1.0, fraction / self.anneal)
        return max(n, round(n * (self.candidate_factor + (1.0 - self.candidate_factor) * gone)))
