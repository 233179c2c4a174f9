"""Tables that most algorithms ask for: a replay of sequences, and a queue of rollouts."""

from __future__ import annotations

from starling.replay.spec import Codec, TableSpec


def replay_table(
    *,
    batch: int,
    capacity: int,
    updates_per_step: float | None,
    learning_starts: int = 1,
    length: int = 1,
    period: int = 1,
    burn_in: int = 0,
    fragment: int = 4,
    priority_exponent: float | None = None,
    codec: Codec = "none",
    reads_past_end: bool = False,
) -> TableSpec:
    """A replay of the last `capacity` env steps, from which sequences are sampled that never cross episodes.

    Args:
        batch: Sequences in a batch.
        capacity: Env steps kept, over all envs; each is stored once, however many sequences contain it.
        updates_per_step: Batches per env step. Actors and learner wait for each other to keep this ratio. None: nobody
            waits, and there are as many batches as the learner can take.
        learning_starts: Sequences in replay before the first batch; at least `batch`.
        length: Steps T of a sequence, e.g. n for n-step returns.
        period: Steps between the starts of two sequences.
        burn_in: The first steps of a sequence, which only warm up a recurrent state.
        fragment: Steps that each env takes between two inserts.
        priority_exponent: PER's alpha; None samples uniformly.
        codec: Compression of observations.
        reads_past_end: Set it if the loss reads the observation after a termination.
    """
    return TableSpec(
        name="replay",
        storage="ring",
        length=length,
        batch=batch,
        capacity=capacity,
        sampler="uniform" if priority_exponent is None else "prioritized",
        priority_exponent=priority_exponent or 0.0,
        period=period,
        burn_in=burn_in,
        fragment=fragment,
        min_size=max(learning_starts, batch),
        updates_per_step=updates_per_step,
        codec=codec,
        reads_past_end=reads_past_end,
    )


def rollout_table(
    *,
    length: int,
    num_envs: int,
    batch: int | None = None,
    max_lag: int = 0,
    name: str = "rollouts",
    share: float = 1.0,
) -> TableSpec:
    """A queue of rollouts, each learned from once.

    Args:
        length: Steps T of a rollout.
        num_envs: Envs of the run.
        batch: Rollouts in a batch; None: one of each env.
        max_lag: Batches that actors may run ahead of the learner. With 0 they wait for the weights of the last update,
            so every batch is on-policy.
        name: Name of the table in metrics.
        share: Part of the batch that comes from this table, if there are several.
    """
    batch = num_envs if batch is None else batch
    return TableSpec(
        name=name,
        storage="slots",
        length=length,
        fragment=length,
        batch=batch,
        capacity=batch * (1 + max_lag) + num_envs,  # all that may be outstanding, plus one per env
        sampler="fifo",
        min_size=int(batch * share) or 1,
        max_lag=max_lag,
        share=share,
    )
