"""Soft values and temperature of SAC (1801.01290, 1812.05905; discrete actions 1910.07207).

Values keep their gradient, because the policy maximizes them; detach them for critic targets.
"""

from __future__ import annotations

from starling.ops.distributions import Categorical
from starling.ops.shapes import check_shapes
from starling.types import Tensor


def soft_value(q: Tensor, log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """q - alpha log pi(a) [...] for a sampled action (1812.05905, eq. 3); q is the minimum of the two critics."""
    check_shapes("soft_value", "...", q=q, log_prob=log_prob)
    return q - alpha * log_prob


def expected_soft_value(q: Tensor, policy: Categorical, alpha: Tensor | float) -> Tensor:
    """sum_a pi(a) (q(a) - alpha log pi(a)) [...] (1910.07207, eq. 10); q [..., A]."""
    check_shapes("expected_soft_value", "... A", q=q, logits=policy.logits)
    return (policy.logits.softmax(-1) * q).sum(-1) + alpha * policy.entropy()


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """alpha (entropy - target) [...] (1812.05905, eq. 18), with a gradient for alpha only.

    For continuous actions, -log pi(a) is a sample of the entropy.
    """
    return log_alpha.exp() * (entropy.detach() - target_entropy)
