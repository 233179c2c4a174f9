"""What an algorithm asks of the store: plain data, the only part of the store that algorithms see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starling.errors import UserError

Storage = Literal["ring", "slots"]
Codec = Literal["none", "zstd"]
Selection = Literal["nearest", "spread", "least_sampled", "grouped"]


@dataclass(frozen=True)
class TableSpec:
    """Which experience an algorithm wants; it never builds storage, opens a queue or waits.

    `ring` keeps every step once and hands out windows that never cross an episode; `slots` keeps whole fragments.
    """

    name: str
    storage: Storage
    length: int  # T of what is sampled
    batch: int  # items in a batch
    capacity: int  # env steps (ring) or fragments (slots)
    sampler: str = "uniform"  # fifo, uniform, prioritized, ranked, or package.module:Class (replay/samplers.py)
    period: int = 1  # ring: a window starts every so many steps of an episode
    prefix: int = 0  # ring: a window with no valid step after these (burn-in) is made only where a segment begins
    fragment: int = 1  # steps an actor collects before it inserts; slots: equal to length
    min_size: int = 1  # items before anything is sampled
    max_times_sampled: int = 1  # fifo: how often an item is handed out
    buffer: int = 1  # fifo: batches that are handed out in turns, as long as they have uses left
    updates_per_step: float | None = None  # batches an inserted env step allows; None: as the sampler can
    max_lag: int | None = None  # 0: synchronous, actors wait for the weights their data made
    priority_exponent: float = 0.6  # prioritized: P(i) ~ p_i ** exponent
    candidate_factor: float = 1.0  # ranked: items that are drawn for every one that is picked
    anneal: float | None = None  # ranked: over so many times the run this falls to 1; None: it stays
    selection: Selection = "nearest"  # ranked: which of the candidates, once the algorithm has scored them
    contest: int = 0  # ranked, slots: when full, the farthest of so many gives way; 0: the oldest does
    codec: Codec = "none"  # ring: how observations are kept in memory
    reads_past_end: bool = True  # ring: a loss looks at what is padded after a termination; if not, stacks cost less
    share: float = 1.0  # of the batch, where several tables feed it

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
        if not 0 <= self.prefix < self.length:
            raise UserError(f"table {self.name!r}: prefix must be at least 0 and below length {self.length}")
        if self.updates_per_step is not None and self.updates_per_step <= 0:
            raise UserError(f"table {self.name!r}: updates_per_step must be above 0")

    @property
    def takes_priorities(self) -> bool:
        """Whether the sampler is told priorities; what one's own makes of them is its business."""
        return self.sampler == "prioritized" or ":" in self.sampler

    def candidates_for(self, n: int, fraction: float) -> int:
        """How many items are drawn as candidates for `n`, when `fraction` of the run is over."""
        gone = 0.0 if self.anneal is None else min(1.0, fraction / self.anneal)
        return max(n, round(n * (self.candidate_factor + (1.0 - self.candidate_factor) * gone)))
