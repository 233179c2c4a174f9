import numpy as np
import pytest
import torch

from starling.ops.distributions import Categorical
from starling.ops.relevance import implied_policy, relevant


@pytest.fixture(scope="module")
def policies():
    rng = np.random.default_rng(0)
    return tuple(Categorical(torch.from_numpy(2 * rng.normal(size=(6, 3, 4)))) for _ in range(2))


@pytest.mark.parametrize("clip_rho", [0.5, 1.0, 3.0])
def test_implied_policy_matches_the_paper(policies, clip_rho):
    pi, mu = policies
    implied = implied_policy(pi, mu, clip_rho).logits.softmax(-1)
    p, m = pi.logits.softmax(-1), mu.logits.softmax(-1)
    for i in np.ndindex(6, 3):
        lower = [min(clip_rho * m[i][a].item(), p[i][a].item()) for a in range(4)]
        assert implied[i].tolist() == pytest.approx([x / sum(lower) for x in lower])


def test_implied_policy_is_pi_on_policy_or_without_clipping(policies):
    pi, mu = policies
    for implied in (implied_policy(pi, pi), implied_policy(pi, mu, 1e9)):
        torch.testing.assert_close(implied.logits.softmax(-1), pi.logits.softmax(-1))


def test_relevance_is_decided_per_state(policies):
    pi, mu = policies
    threshold = pi.kl(mu).median().item()
    keep = relevant(pi, mu, threshold)
    assert keep.shape == (6, 3)
    assert 0 < keep.sum() < keep.numel()
    for i in np.ndindex(6, 3):
        p, m = pi.logits[i].softmax(-1), mu.logits[i].softmax(-1)
        assert keep[i].item() == (sum(p * (p / m).log()).item() <= threshold + 1e-12)
    assert relevant(pi, pi, 0.01).all()


def test_action_impossible_under_the_behavior_policy_makes_a_state_irrelevant():
    pi, mu = Categorical(torch.zeros(1, 2)), Categorical(torch.tensor([[0.0, -torch.inf]]))
    assert not relevant(pi, implied_policy(pi, mu), 10.0).item()
