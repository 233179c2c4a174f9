"""Decides whether actors or the learner may continue: pure arithmetic over all tables of a mixture.

An actor needs a credit to *begin* a fragment, so that its data is never older than the settings allow; a learner needs
enough items and, for replay, enough env steps. Nothing here waits: every query returns at once.

A table with sampler "fifo" is a queue here; every other sampler, also a custom one, is replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from starling.errors import UserError, require, to_count
from starling.replay.batching import split
from starling.replay.ring import ring_length
from starling.replay.spec import TableSpec

_MOST_RATIO = 10**4  # batches per env step; ten times the largest value that a configuration allows


class Limiter:
    """Limits the credits of actors and the batches of a learner, for tables that all receive every fragment.

    `num_envs` is the number of envs that fill the tables.
    """

    def __init__(self, specs: Sequence[TableSpec], num_envs: int) -> None:
        if len({(spec.fragment, spec.batch) for spec in specs}) != 1:
            given = {spec.name: (spec.fragment, spec.batch) for spec in specs}
            raise UserError(f"tables of one learner must have one fragment and one batch, not {given}")
        self._specs, self._num_envs, self._fragment = tuple(specs), num_envs, specs[0].fragment
        self._quotas = split(specs[0].batch, [spec.share for spec in specs])  # items of each table in a batch
        self._queues = [i for i, spec in enumerate(specs) if spec.sampler == "fifo"]
        self._replays = [i for i, spec in enumerate(specs) if spec.sampler != "fifo"]
        ratios = [exact_ratio(spec.updates_per_step) for spec in specs if spec.updates_per_step is not None]
        self._ratios = [ratio.as_integer_ratio() for ratio in ratios]  # (batches, env steps)
        self._in_flight = 0  # envs of all fragments that have begun and are not inserted
        self._steps = 0  # env steps inserted
        self._start: int | None = None  # env steps inserted when every table first had its min_size
        self._sampled = 0  # batches
        self._sizes = [0] * len(specs)  # items in each table at the last `set_sizes`; for queues, updated since
        self._unpublished: list[list[int]] = []  # for each batch: items it took from each queue

    @property
    def unpaced(self) -> bool:
        """True if the next batch may be drawn as soon as one is done: no queue and no ratio sets the pace."""
        return not self._queues and not self._ratios

    @property
    def batches(self) -> int:
        """Number of batches drawn so far."""
        return self._sampled

    @property
    def in_flight(self) -> int:
        """Number of envs of all fragments that have begun and are not inserted."""
        return self._in_flight

    def may_begin(self, num_envs: int) -> bool:
        """Return True if a fragment of `num_envs` envs may begin now."""
        # While a replay fills, the learner takes nothing from the queues either: with their limits, all would wait.
        if any(self._sizes[i] < self._specs[i].min_size for i in self._replays):
            return True
        return all(self._queue_has_room(i, num_envs) for i in self._queues) and self._learner_keeps_up()

    def _queue_has_room(self, i: int, num_envs: int) -> bool:
        """Check that items begun, queued, or in unpublished batches stay within the limits of queue `i`."""
        spec, quota = self._specs[i], self._quotas[i]
        k = self._queues.index(i)
        outstanding = self._in_flight + self._sizes[i] + sum(batch[k] for batch in self._unpublished)
        room = spec.capacity if spec.max_lag is None else min(spec.capacity, quota * (1 + spec.max_lag))
        # Items that the next batch still lacks may always begin, except that max_lag=0 never allows more than a batch.
        return outstanding + num_envs <= room or (spec.max_lag != 0 and outstanding < quota)

    def _learner_keeps_up(self) -> bool:
        """Check (env steps begun since the start - one fragment of every env) * updates_per_step <= batches sampled."""
        ahead = self._steps - (self._start or 0) + self._in_flight * self._fragment
        one_round = self._num_envs * self._fragment
        return all((ahead - one_round) * batches <= self._sampled * steps for batches, steps in self._ratios)

    def begin(self, num_envs: int) -> None:
        """Count the credit for a fragment of `num_envs` envs without a check; `Store.begin` asks `may_begin` first."""
        self._in_flight += num_envs

    def on_inserted(self, env_steps: int, num_envs: int) -> None:
        """Count a fragment of `num_envs` envs with `env_steps` valid steps; a full queue drops its oldest items."""
        self._in_flight -= num_envs
        self._steps += env_steps
        for i in self._queues:
            self._sizes[i] = min(self._sizes[i] + num_envs, self._specs[i].capacity)

    def on_lost(self, num_envs: int) -> None:
        """Take back the credit for a fragment of `num_envs` envs whose actor died."""
        self._in_flight -= num_envs

    def abandon(self) -> None:
        """Reset for new actors and a new learner: no fragment has begun and no batch is being learned from."""
        self._in_flight = 0
        self._unpublished.clear()

    def set_sizes(self, sizes: Sequence[int]) -> None:
        """Set the number of items in each table; until the next call, only those of queues are updated."""
        self._sizes = list(sizes)

    def may_sample(self, sizes: Sequence[int]) -> bool:
        """Return True if the next batch may be drawn, given the number of items in each table.

        Also notes the sizes (`set_sizes`), and the env steps at the first call for which every table has its min_size.

        The first batch may be drawn as soon as every table has its min_size, then `updates_per_step` batches per env
        step: after N more steps, exactly 1 + floor(N * updates_per_step) batches.
        """
        self.set_sizes(sizes)
        if not all(size >= spec.min_size for size, spec in zip(sizes, self._specs, strict=True)):
            return False
        if self._start is None:
            self._start = self._steps
        if any(self._sizes[i] < self._quotas[i] for i in self._queues):
            return False
        fresh = self._steps - self._start
        return all(self._sampled * steps <= fresh * batches for batches, steps in self._ratios)

    def owed(self) -> int:
        """Batches that the inserted steps allow and that are not drawn yet; 1 if no table sets `updates_per_step`."""
        fresh = self._steps - (self._start or 0)
        return min((fresh * batches // steps + 1 - self._sampled for batches, steps in self._ratios), default=1)

    def on_sampled(self) -> None:
        """Count a batch that was drawn; every `max_times_sampled`-th batch removes its items from a queue."""
        self._sampled += 1
        if not self._queues:
            return
        last_use = [self._sampled % self._specs[i].max_times_sampled == 0 for i in self._queues]
        gone = [self._quotas[i] * last for i, last in zip(self._queues, last_use, strict=True)]
        for i, count in zip(self._queues, gone, strict=True):
            self._sizes[i] -= count
        self._unpublished.append(gone)

    def on_published(self) -> None:
        """Count the publication of the weights that were learned from the oldest unpublished batch."""
        del self._unpublished[:1]

    def check_valid(self) -> None:
        require(self._in_flight >= 0, "more fragments came back than began")
        require(len(self._sizes) == len(self._specs), "sizes of different tables")
        require(0 <= (self._start or 0) <= self._steps, "a start after the last step")
        require(min(self._sampled, self._steps, *self._sizes) >= 0, "a negative count")
        fresh = self._steps - (self._start or 0)
        require(not self._ratios or self._sampled <= 1 + _MOST_RATIO * fresh, "more batches than steps allow")
        require(all(len(batch) == len(self._queues) for batch in self._unpublished), "a batch of different tables")

    def get_state(self) -> dict[str, Any]:
        return {
            "in_flight": self._in_flight,
            "steps": self._steps,
            "start": self._start,
            "sampled": self._sampled,
            "sizes": list(self._sizes),
            "unpublished": [list(batch) for batch in self._unpublished],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        start = state["start"]
        self._in_flight, self._steps = to_count(state["in_flight"]), to_count(state["steps"])
        self._start = None if start is None else to_count(start)
        self._sampled, self._sizes = to_count(state["sampled"]), [to_count(size) for size in state["sizes"]]
        self._unpublished = [[to_count(items) for items in batch] for batch in state["unpublished"]]


def pace(specs: Sequence[TableSpec]) -> tuple[TableSpec, int]:
    """The table that sets the learner's pace, a queue or else the first table, and its number of items in a batch."""
    quotas = split(specs[0].batch, [spec.share for spec in specs])
    queues = [i for i, spec in enumerate(specs) if spec.sampler == "fifo"]
    leader = (queues or [0])[0]
    return specs[leader], quotas[leader]


def steps_per_update(specs: Sequence[TableSpec]) -> float:
    """Number of env steps per update; of a replay without a ratio, the steps of one batch."""
    table, take = pace(specs)
    if table.updates_per_step is not None:
        return 1 / table.updates_per_step
    return take * table.length / table.max_times_sampled


def exact_ratio(value: float) -> Fraction:
    """Convert a float to the simple fraction it stands for (1/3, not 0.333...3), so that counts do not drift."""
    return Fraction(value).limit_denominator(10**9)


def check(specs: Sequence[TableSpec], num_envs: int, groups: Sequence[int]) -> None:
    """Reject settings that would deadlock; `groups` is the number of envs in the fragments of each actor."""
    Limiter(specs, num_envs)
    quotas = split(specs[0].batch, [spec.share for spec in specs])
    for spec, quota in zip(specs, quotas, strict=True):
        if quota == 0:
            raise UserError(f"table {spec.name!r}: share {spec.share} of a batch of {spec.batch} is below one item")
        if spec.sampler == "fifo":
            _check_queue(spec, quota, groups)
        else:
            _check_replay(spec, quota)
        if spec.storage == "ring":
            if spec.fragment > spec.capacity // num_envs:
                raise UserError(
                    f"table {spec.name!r}: a fragment of {spec.fragment:,} steps does not fit into a capacity of"
                    f" {spec.capacity:,} with {num_envs:,} envs; lower the fragment to at most"
                    f" {max(1, spec.capacity // num_envs):,} or raise the capacity"
                )
            _check_ring(spec, num_envs)
        else:
            _check_slots(spec, groups)
    queues = [(spec, quota) for spec, quota in zip(specs, quotas, strict=True) if spec.sampler == "fifo"]
    if queues and any(spec.updates_per_step is not None for spec in specs):
        raise UserError("updates_per_step is set beside a fifo table, which sets the pace already; leave it out")
    if len({Fraction(quota, spec.max_times_sampled) for spec, quota in queues}) > 1:
        raise UserError(
            "several fifo tables must use up fragments equally fast: make share / max_times_sampled the same"
        )


def _check_ring(spec: TableSpec, num_envs: int) -> None:
    if spec.capacity // num_envs <= spec.length:
        raise UserError(
            f"table {spec.name!r}: capacity {spec.capacity} over {num_envs} envs is too small for sequences of"
            f" {spec.length} steps; at least {num_envs * (spec.length + 1)} is needed"
        )
    most = num_envs * max(1, (ring_length(spec, num_envs) - spec.length) // spec.period)
    if spec.min_size > most:
        raise UserError(
            f"table {spec.name!r}: learning waits for {spec.min_size:,} items, and about {most:,} fit; raise the"
            " capacity or lower learning_starts"
        )


def _check_slots(spec: TableSpec, groups: Sequence[int]) -> None:
    if spec.min_size > spec.capacity:
        raise UserError(
            f"table {spec.name!r}: learning waits for {spec.min_size:,} items, and {spec.capacity:,} fit;"
            " raise the capacity or lower min_size"
        )
    if max(groups) > spec.capacity:
        raise UserError(f"table {spec.name!r}: capacity {spec.capacity} is below an actor's {max(groups)} envs")


def _check_queue(spec: TableSpec, quota: int, groups: Sequence[int]) -> None:
    if spec.storage == "ring":
        raise UserError(f"table {spec.name!r}: a ring cannot be read as a queue; fifo needs storage slots")
    if spec.capacity < quota:
        raise UserError(f"table {spec.name!r}: capacity {spec.capacity} never holds the {quota} items of a batch")
    if spec.max_lag is None:
        return
    if spec.min_size > quota * (1 + spec.max_lag):
        raise UserError(f"table {spec.name!r}: min_size {spec.min_size} is never reached with max_lag {spec.max_lag}")
    if spec.max_lag > 0:
        return
    if spec.max_times_sampled > 1:
        raise UserError(
            f"table {spec.name!r}: max_lag 0 allows each item one use, not max_times_sampled {spec.max_times_sampled}"
        )
    if len(set(groups)) > 1:
        raise UserError(
            f"table {spec.name!r}: max_lag 0 needs actors with equally many envs, not {sorted(set(groups))}: make"
            " env.num a multiple of actors"
        )
    if quota % groups[0]:
        raise UserError(
            f"table {spec.name!r}: max_lag 0 needs a batch ({quota} items) made of whole fragments; actors have"
            f" {groups[0]} envs each: make the batch a multiple of that"
        )


def _check_replay(spec: TableSpec, quota: int) -> None:
    if spec.max_lag is not None:
        raise UserError(f"table {spec.name!r}: max_lag is for fifo tables; for replay set updates_per_step")
    if spec.capacity < quota:
        raise UserError(
            f"table {spec.name!r}: capacity {spec.capacity} is smaller than a batch of {quota} items; raise the"
            " capacity or lower the batch"
        )
    if spec.capacity < (many := spec.candidates_for(quota, 0.0)):
        raise UserError(
            f"table {spec.name!r}: capacity {spec.capacity} is below the {many} candidates ({spec.candidate_factor:g} x"
            f" {quota}) of a batch; raise the capacity, or lower lambda or the share"
        )
