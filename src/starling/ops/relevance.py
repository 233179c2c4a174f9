"""How close old experience is: behavior relevance of LASER (1909.11583), distances of attentive and elite replay."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch.nn.functional import normalize

from starling.ops.distributions import Categorical, MultiCategorical
from starling.ops.shapes import check_shapes
from starling.types import Tensor

D = TypeVar("D", Categorical, MultiCategorical)


@torch.no_grad()
def implied_policy(pi: Categorical, mu: Categorical, clip_rho: float = 1.0) -> Categorical:
    """The policy that V-trace with clipped weights evaluates: min(clip_rho mu(a), pi(a)), normalized (1909.11583)."""
    log_pi, log_mu = pi.logits.log_softmax(-1), mu.logits.log_softmax(-1)
    return Categorical(torch.minimum(math.log(clip_rho) + log_mu, log_pi))


@torch.no_grad()
def relevant(pi: D, reference: D, threshold: float) -> Tensor:
    """Mask KL(pi || reference) <= threshold, bool [...], for `keep_t` of `vtrace`.

    The reference is the implied policy (as in the paper) or the behavior policy. The test depends on the state only: a
    test on the sampled action would bias the estimate.
    """
    return pi.kl(reference) <= threshold


@torch.no_grad()
def lp_distance(x: Tensor, y: Tensor, p: float) -> Tensor:
    """(sum |x - y|^p)^(1/p) over features, [...]; both [..., F]."""
    check_shapes("lp_distance", "... F", x=x, y=y)
    norm: Tensor = torch.linalg.vector_norm(x - y, ord=p, dim=-1)
    return norm


@torch.no_grad()
def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """1 - cosine similarity of x and y, [...]; both [..., F]."""
    check_shapes("cosine_distance", "... F", x=x, y=y)
    return 1.0 - (normalize(x, dim=-1) * normalize(y, dim=-1)).sum(-1)


@torch.no_grad()
def nearest_lp(x: Tensor, others: Tensor, p: float) -> Tensor:
    """Smallest `lp_distance` [...] of x [..., F] to any of `others` [R, F]."""
    return torch.cdist(x.flatten(0, -2), others, p=p).amin(-1).view(x.shape[:-1])


@torch.no_grad()
def nearest_cosine(x: Tensor, others: Tensor) -> Tensor:
    """Smallest `cosine_distance` [...] of x [..., F] to any of `others` [R, F]."""
    return 1.0 - (normalize(x, dim=-1) @ normalize(others, dim=-1).T).amax(-1)


@torch.no_grad()
def sequence_mean(distance_t: Tensor, valid_t: Tensor) -> Tensor:
    """Mean distance over the valid states of each sequence [B], inf if there are none; inputs [T, B]."""
    check_shapes("sequence_mean", "T B", distance_t=distance_t, valid_t=valid_t)
    count = valid_t.sum(0)
    mean = torch.where(valid_t, distance_t, 0.0).sum(0) / count.clamp(min=1)
    return torch.where(count > 0, mean, torch.inf)
