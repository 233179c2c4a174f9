import numpy as np
import pytest
import torch
from scipy import stats

from starling.ops.explore import epsilon_greedy, epsilon_greedy_policy, epsilon_greedy_probability, ladder


def test_epsilon_ladder_of_apex():
    epsilons = ladder(torch.arange(8), 8)
    assert epsilons.dtype == torch.float32
    assert epsilons.tolist() == pytest.approx([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    assert ladder(torch.tensor([3]), 8).item() == epsilons[3].item()  # depends on the env's own index alone
    assert ladder(torch.tensor([0]), 1).item() == pytest.approx(0.4)
    assert ladder(torch.tensor([2]), 3, base=0.5, alpha=2.0).item() == pytest.approx(0.125)


def test_epsilon_greedy_action_frequencies():
    n = 30_000
    q = torch.tensor([0.1, 0.9, 0.5, -1.0]).expand(n, 4)
    noise = torch.from_numpy(np.random.default_rng(0).random((n, 2))).float()
    action = epsilon_greedy(q, torch.full((n,), 0.4), noise)
    assert action.dtype == torch.int64
    expected = np.array([0.1, 0.7, 0.1, 0.1]) * n
    assert stats.chisquare(np.bincount(action.numpy(), minlength=4), expected).pvalue > 1e-3
    torch.testing.assert_close(epsilon_greedy_policy(q[:1], 0.4), torch.tensor([[0.1, 0.7, 0.1, 0.1]]))


@pytest.mark.parametrize("actions", [1, 2, 6, 18])
def test_extreme_noise_and_epsilon_give_valid_actions(actions):
    q = torch.arange(3.0 * actions).view(3, actions)
    noise = torch.tensor([[0.0, 0.0], [0.5, np.nextafter(np.float32(1), np.float32(0))], [1.0, 1.0]])
    uniform = epsilon_greedy(q, torch.full((3,), 1.1), noise)
    assert uniform.tolist() == [0, actions - 1, actions - 1]
    assert epsilon_greedy(q, torch.zeros(3), noise).tolist() == [actions - 1] * 3


def test_probability_is_that_of_the_taken_action():
    rng = np.random.default_rng(1)
    q = torch.from_numpy(rng.normal(size=(5, 3, 4)))
    epsilon = torch.from_numpy(rng.random((5, 3)))
    action = torch.from_numpy(rng.integers(4, size=(5, 3)))
    policy = epsilon_greedy_policy(q, epsilon)
    probability = epsilon_greedy_probability(q, epsilon, action)
    torch.testing.assert_close(policy.sum(-1), torch.ones(5, 3).double())
    hits = 0
    for i in np.ndindex(5, 3):
        greedy = int(action[i]) == int(np.argmax(q[i].numpy()))
        hits += greedy
        expected = epsilon[i] / 4 + (1 - epsilon[i]) * greedy
        assert probability[i].item() == pytest.approx(expected.item())
    assert 0 < hits < 15
    assert not epsilon_greedy_policy(q.requires_grad_(), epsilon).requires_grad


def test_shape_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"epsilon_greedy: noise has shape \(3, 1\), expected \[B, 2\] = \(3, 2\) as q"
    ):
        epsilon_greedy(torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="epsilon_greedy_policy: epsilon has shape"):
        epsilon_greedy_policy(torch.zeros(3, 4), torch.zeros(3, 1))
