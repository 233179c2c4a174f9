import math

import numpy as np
import pytest
import torch

from starling.ops.distributions import Categorical
from starling.ops.policy import expected_soft_value, soft_value, temperature_loss


def test_soft_values_match_the_papers():
    rng = np.random.default_rng(0)
    q, logits = (torch.from_numpy(rng.normal(size=(5, 3))).requires_grad_() for _ in range(2))
    policy, alpha = Categorical(logits), 0.3
    value = expected_soft_value(q, policy, alpha)
    p = logits.softmax(-1)
    for b in range(5):
        assert value[b].item() == pytest.approx(
            sum(p[b, a] * (q[b, a] - alpha * p[b, a].log()) for a in range(3)).item()
        )
    sampled = torch.stack([soft_value(q[:, a], policy.log_prob(torch.full((5,), a)), alpha) for a in range(3)], -1)
    torch.testing.assert_close((p * sampled).sum(-1), value)


def test_maximizing_the_soft_value_leads_to_the_softmax_policy():
    """Where the gradient is 0, pi = softmax(q / alpha) and the value is alpha log sum exp(q / alpha)."""
    q, alpha = torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64), 0.3
    logits = (q / alpha).requires_grad_()
    value = expected_soft_value(q, Categorical(logits), alpha)
    value.backward()
    assert value.item() == pytest.approx(alpha * torch.logsumexp(q / alpha, 0).item())
    assert logits.grad.abs().max() < 1e-12


@pytest.mark.parametrize(("entropy", "sign"), [(2.0, 1), (0.5, -1)])
def test_temperature_falls_when_entropy_is_above_its_target(entropy, sign):
    log_alpha, h = torch.tensor(-1.0, requires_grad=True), torch.full((4,), entropy, requires_grad=True)
    loss = temperature_loss(log_alpha, h, target_entropy=1.0)
    loss.mean().backward()
    assert log_alpha.grad.item() == pytest.approx(math.exp(-1.0) * (entropy - 1.0))
    assert np.sign(log_alpha.grad.item()) == sign
    assert h.grad is None


def test_shape_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"soft_value: log_prob has shape \(4, 1\), expected \[\.\.\.\] = \(4,\) as q"):
        soft_value(torch.zeros(4), torch.zeros(4, 1), 0.1)
