"""Behaviour relevance: at which states old experience still says something about the present policy (1909.11583)."""

from __future__ import annotations

import math
from typing import TypeVar

import torch

from starling.ops.distributions import Categorical, MultiCategorical
from starling.types import Tensor

D = TypeVar("D", Categorical, MultiCategorical)


@torch.no_grad()
def implied_policy(pi: Categorical, mu: Categorical, clip_rho: float = 1.0) -> Categorical:
    """What clipped weights really evaluate: min(clip_rho mu(a), pi(a)) over its sum (1909.11583)."""
    log_pi, log_mu = pi.logits.log_softmax(-1), mu.logits.log_softmax(-1)
    return Categorical(torch.minimum(math.log(clip_rho) + log_mu, log_pi))


@torch.no_grad()
def relevant(pi: D, reference: D, threshold: float) -> Tensor:
    """Where KL(pi || reference) <= threshold [...] bool, for `keep_t` of `vtrace`.

    The reference is the implied policy (the paper) or the behaviour itself. A test on states, never on the sampled
    action: that would bias the estimate.
    """
    return pi.kl(reference) <= threshold
