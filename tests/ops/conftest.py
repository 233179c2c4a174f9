"""Rollouts as vector envs with NEXT_STEP autoreset produce them, in float64 for tight comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

GAMMA = 0.9


@dataclass(frozen=True)
class Rollout:
    """T steps of B envs; `episodes` lists (b, start, stop) of every run of valid steps, with b the batch index."""

    r_t: torch.Tensor
    discount_t: torch.Tensor
    v: torch.Tensor  # [T+1, B]
    terminated_t: torch.Tensor
    truncated_t: torch.Tensor
    valid_t: torch.Tensor
    episodes: tuple[tuple[int, int, int], ...]

    @property
    def v_t(self):
        return self.v[:-1]

    @property
    def v_tp1(self):
        return self.v[1:]

    def spoiled(self, seed=99):
        """The same rollout with huge values wherever no valid step may look: r and discount at resets, V after
        termination.
        """
        rng = np.random.default_rng(seed)
        huge = torch.from_numpy(rng.normal(size=self.r_t.shape) * 1e6)
        v_t = torch.where(self.valid_t, self.v_t, huge)
        v_tp1 = torch.where(self.valid_t & ~self.terminated_t, self.v_tp1, -huge)
        r_t = torch.where(self.valid_t, self.r_t, huge)
        return replace(self, r_t=r_t, discount_t=torch.where(self.valid_t, self.discount_t, huge)), v_t, v_tp1


def _ends(rng, length, p_end):
    """(terminated, truncated, valid) of one env; the step after an end is a reset, and so may be the first."""
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    valid = np.ones(length, bool)
    valid[0] = rng.random() > p_end / 2
    for t in range(length):
        if t > 0 and (terminated[t - 1] or truncated[t - 1]):
            valid[t] = False
        elif valid[t] and rng.random() < p_end:
            (terminated if rng.random() < 0.5 else truncated)[t] = True
    return terminated, truncated, valid


def _episodes(valid):
    spans = []
    for row in range(valid.shape[1]):
        start = None
        for t in range(valid.shape[0] + 1):
            inside = t < valid.shape[0] and valid[t, row]
            if inside and start is None:
                start = t
            elif not inside and start is not None:
                spans.append((row, start, t))
                start = None
    return tuple(spans)


def _make_rollout(seed=0, length=17, rows=6, p_end=0.25):
    rng = np.random.default_rng(seed)
    columns = [_ends(rng, length, p_end) for _ in range(rows)]
    terminated, truncated, valid = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
    discount = GAMMA * rng.uniform(0.8, 1.0, (length, rows)) * ~terminated
    return Rollout(
        r_t=torch.from_numpy(rng.normal(size=(length, rows))),
        discount_t=torch.from_numpy(discount),
        v=torch.from_numpy(rng.normal(size=(length + 1, rows))),
        terminated_t=torch.from_numpy(terminated),
        truncated_t=torch.from_numpy(truncated),
        valid_t=torch.from_numpy(valid),
        episodes=_episodes(valid),
    )


@pytest.fixture(scope="session")
def make_rollout():
    return _make_rollout
