"""Retrace compared with its definition and its special cases."""

import numpy as np
import pytest
import torch

from starling.ops.explore import epsilon_greedy_policy
from starling.ops.retrace import retrace
from starling.ops.returns import n_step_return
from starling.ops.value import IDENTITY, RESCALED, Transform, batched_index

SEEDS = [0, 1, 2]
ACTIONS = 3


def off_policy(rollout, seed=11):
    """Q of all actions, actions, an arbitrary policy, and the probability of each action under another policy."""
    rng = np.random.default_rng(seed)
    length, rows = rollout.r_t.shape
    q = torch.from_numpy(rng.normal(size=(length + 1, rows, ACTIONS)))
    action = torch.from_numpy(rng.integers(ACTIONS, size=(length, rows)))
    pi = torch.from_numpy(rng.dirichlet(np.ones(ACTIONS), size=(length + 1, rows)))
    mu = torch.from_numpy(rng.uniform(0.05, 1.0, size=(length, rows)))
    return q, action, pi, mu


def slow_retrace(rollout, q, action, pi, mu, lam, apply, inverse):
    """h(h^-1(Q_t) + sum_s gamma^(s-t) (prod_{t<i<=s} c_i) delta_s), within each episode (1606.02647, eq. 3)."""
    r, d = rollout.r_t.numpy(), rollout.discount_t.numpy()
    length, rows = r.shape
    out = np.array([[q[t, b, action[t, b]].item() for b in range(rows)] for t in range(length)])
    raw = inverse(q).numpy()
    pi, mu, action = pi.numpy(), mu.numpy(), action.numpy()

    def delta(s, b):
        bootstrap = sum(pi[s + 1, b, a] * raw[s + 1, b, a] for a in range(ACTIONS))
        return r[s, b] + d[s, b] * bootstrap - raw[s, b, action[s, b]]

    for b, start, stop in rollout.episodes:
        for t in range(start, stop):
            total, weight = raw[t, b, action[t, b]], 1.0
            for s in range(t, stop):
                if s > t:
                    weight *= lam * min(1.0, pi[s, b, action[s, b]] / mu[s, b])
                total += weight * delta(s, b)
                weight *= d[s, b]
            out[t, b] = apply(torch.tensor(total, dtype=torch.float64)).item()
    return torch.from_numpy(out)


def run(rollout, q, action, pi, mu, **options):
    return retrace(rollout.r_t, rollout.discount_t, q, action, pi, mu, rollout.valid_t, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("transform", [IDENTITY, RESCALED], ids=["identity", "h"])
def test_retrace_matches_its_definition(make_rollout, seed, lam, transform):
    rollout = make_rollout(seed)
    data = off_policy(rollout)
    slow = slow_retrace(rollout, *data, lam, transform.apply, transform.inverse)
    torch.testing.assert_close(run(rollout, *data, lambda_t=lam, transform=transform), slow)


@pytest.mark.parametrize("seed", SEEDS)
def test_on_policy_with_lambda_1_it_is_the_return(make_rollout, seed):
    """A greedy policy that took its own actions: V = Q(a), so only rewards and the final bootstrap remain."""
    rollout = make_rollout(seed)
    q, _, _, _ = off_policy(rollout)
    action, pi = q[:-1].argmax(-1), epsilon_greedy_policy(q, 0.0)
    v = q.amax(-1)
    target = run(rollout, q, action, pi, torch.ones_like(rollout.r_t))
    full = n_step_return(rollout.r_t, rollout.discount_t, v[:-1], v[1:], len(rollout.r_t), rollout.valid_t)
    torch.testing.assert_close(target, full)


def test_first_step_is_unweighted_and_an_impossible_action_cuts_the_trace():
    """pi never takes action 1: its own target is still r_t + gamma V, and the step before it uses V only."""
    q = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    pi = torch.tensor([1.0, 0.0]).expand(3, 1, 2)
    action, mu = torch.tensor([[1], [1]]), torch.zeros(2, 1)
    r, d, valid = torch.full((2, 1), 10.0), torch.full((2, 1), 0.5), torch.ones(2, 1, dtype=torch.bool)
    target = retrace(r, d, q, action, pi, mu, valid)
    assert target.flatten().tolist() == [10.0 + 0.5 * 3.0, 10.0 + 0.5 * 5.0]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_two_episodes_in_one_rollout_equal_separate_ones(make_rollout, ending):
    rollout = make_rollout(0, length=8, rows=2, p_end=0.0)
    q, action, pi, mu = off_policy(rollout)
    r, d, valid = rollout.r_t, rollout.discount_t.clone(), rollout.valid_t.clone()
    d[2] = 0.0 if ending == "terminated" else 0.9
    valid[3] = False
    joint = retrace(r, d, q, action, pi, mu, valid, lambda_t=0.9)
    for part, after in ((slice(0, 3), slice(0, 4)), (slice(4, 8), slice(4, 9))):
        separate = retrace(r[part], d[part], q[after], action[part], pi[after], mu[part], valid[part], lambda_t=0.9)
        torch.testing.assert_close(joint[part], separate, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_at_invalid_steps_are_ignored(make_rollout, seed):
    """At a reset only Q and pi count, as V(final obs); reward, discount, action, and mu do not."""
    rollout = make_rollout(seed)
    valid = rollout.valid_t
    q, action, pi, mu = off_policy(rollout)
    clean = run(rollout, q, action, pi, mu, lambda_t=0.9)
    spoiled, _, _ = rollout.spoiled()
    other = torch.where(valid, action, (action + 1) % ACTIONS)
    with_garbage = run(spoiled, q, other, pi, torch.where(valid, mu, 0.0), lambda_t=0.9)
    assert with_garbage[valid].equal(clean[valid])
    own = batched_index(q[:-1], other)
    assert with_garbage[~valid].equal(own[~valid])


def test_transform_is_inverted_inside_the_expectation():
    """sum_a pi(a) h^-1(Q(a)), not h^-1 of the mean: with squares (1 + 9) / 2 = 5 rather than 4."""
    square = Transform(apply=lambda x: x.sqrt(), inverse=lambda x: x.square())
    q = torch.tensor([[[1.0, 1.0]], [[1.0, 3.0]]])
    pi = torch.full((2, 1, 2), 0.5)
    one = torch.ones(1, 1)
    target = retrace(one * 4.0, one, q, torch.zeros(1, 1, dtype=torch.int64), pi, one, one.bool(), transform=square)
    assert target.item() == 3.0


def test_targets_are_detached_and_shape_errors_name_the_argument(make_rollout):
    rollout = make_rollout(0, length=5, rows=4)
    q, action, pi, mu = off_policy(rollout)
    assert not run(rollout, q.requires_grad_(), action, pi.requires_grad_(), mu).requires_grad
    with pytest.raises(ValueError, match=r"retrace: q has shape \(5, 4, 3\), expected \[T\+1, B, A\] = \(6, 4, A\)"):
        run(rollout, q[:-1], action, pi, mu)
