"""What an algorithm asks of the store: plain data, the only part of the store that algorithms see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starling.errors import UserError

Storage = Literal["ring", "slots"]
Codec = Literal["none", "zstd"]


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
    sampler: str = "uniform"  # fifo, uniform, prioritized
    period: int = 1  # ring: a window starts every so many steps of an episode
    prefix: int = 0  # ring: a window with no valid step after these (burn-in) is made only where a segment begins
    fragment: int = 1  # steps an actor collects before it inserts; slots: equal to length
    min_size: int = 1  # items before anything is sampled
    max_uses: int = 1  # fifo: how often an item is handed out
    updates_per_step: float | None = None  # batches an inserted env step allows; None: as the sampler can
    max_lag: int | None = None  # 0: synchronous, actors wait for the weights their data made
    priority_exponent: float = 0.6  # prioritized: P(i) ~ p_i ** exponent
    codec: Codec = "none"  # ring: how observations are kept in memory
    reads_past_end: bool = True  # ring: a loss looks at what is padded after a termination; if not, stacks cost less
    share: float = 1.0  # of the batch, where several tables feed it

    def __post_init__(self) -> None:
        positive = ("length", "batch", "capacity", "period", "fragment", "min_size", "max_uses")
        for name in positive:
            if getattr(self, name) < 1:
                raise UserError(f"table {self.name!r}: {name} must be at least 1, not {getattr(self, name)}")
        if self.storage == "slots" and self.fragment != self.length:
            raise UserError(f"table {self.name!r}: slots keep fragments whole, so fragment must equal length")
        if not 0 <= self.prefix < self.length:
            raise UserError(f"table {self.name!r}: prefix must be at least 0 and below length {self.length}")
        if self.updates_per_step is not None and self.updates_per_step <= 0:
            raise UserError(f"table {self.name!r}: updates_per_step must be above 0")
