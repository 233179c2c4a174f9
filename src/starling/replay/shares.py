"""Divides a batch among several tables."""

from __future__ import annotations

from collections.abc import Sequence

from starling.errors import UserError


def split(n: int, shares: Sequence[float]) -> list[int]:
    """Split `n` items by share (largest remainder method; ties go to the first); the counts sum to `n`."""
    total = sum(shares)
    if not shares or min(shares) < 0 or not total > 0:
        raise UserError(f"shares must be at least 0 and not all 0, not {list(shares)}")
    exact = [n * share / total for share in shares]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts
