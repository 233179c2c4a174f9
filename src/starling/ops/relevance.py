"""Behavior relevance of LASER (1909.11583): the states at which old experience is close enough to the policy."""

from __future__ import annotations

import math
from typing import TypeVar

import torch

from starling.ops.distributions import Categorical, MultiCategorical
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
