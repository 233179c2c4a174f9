"""Returns and advantages compared with sums written out per episode."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.ops.returns import backward_recursion, gae, lambda_return, n_step_return, window_return

SEEDS = [0, 1, 2]


def slow_gae(rollout, lam):
    """A_t = sum_l (prod gamma lambda) delta_{t+l}, within each episode (1506.02438, eq. 16)."""
    r, d, v = rollout.r_t.numpy(), rollout.discount_t.numpy(), rollout.v.numpy()
    out = np.zeros_like(r)
    for b, start, stop in rollout.episodes:
        for t in range(start, stop):
            weight = 1.0
            for k in range(t, stop):
                out[t, b] += weight * (r[k, b] + d[k, b] * v[k + 1, b] - v[k, b])
                weight *= d[k, b] * lam[k, b]
    return out


def slow_n_step(rollout, n):
    """sum_{k<m} (prod gamma) r_{t+k} + (prod gamma) v_{t+m} with m = min(n, steps left); v_t at invalid steps."""
    r, d, v = rollout.r_t.numpy(), rollout.discount_t.numpy(), rollout.v.numpy()
    out = v[:-1].copy()
    for b, start, stop in rollout.episodes:
        for t in range(start, stop):
            end = min(t + n, stop)
            total, weight = 0.0, 1.0
            for k in range(t, end):
                total += weight * r[k, b]
                weight *= d[k, b]
            out[t, b] = total + weight * v[end, b]
    return out


def slow_lambda_return(rollout, lam):
    """(1 - lambda) sum_n lambda^(n-1) G^(n); the last n has the remaining weight (Sutton and Barto, eq. 12.3)."""
    out = rollout.v_t.numpy().copy()
    g = {n: slow_n_step(rollout, n) for n in range(1, len(out) + 1)}
    for b, start, stop in rollout.episodes:
        for t in range(start, stop):
            left = stop - t
            total = sum((1 - lam) * lam ** (n - 1) * g[n][t, b] for n in range(1, left))
            out[t, b] = total + lam ** (left - 1) * g[left][t, b]
    return out


def args_of(rollout):
    return rollout.r_t, rollout.discount_t, rollout.v_t, rollout.v_tp1


@pytest.mark.parametrize("seed", SEEDS)
def test_rollouts_contain_every_kind_of_step(make_rollout, seed):
    rollout = make_rollout(seed)
    assert rollout.terminated_t.any()
    assert rollout.truncated_t.any()
    assert (~rollout.valid_t).any()
    assert len(rollout.episodes) > 2 * rollout.r_t.shape[1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0, "a tensor"])
def test_gae_is_the_discounted_sum_of_td_errors(make_rollout, seed, lam):
    rollout = make_rollout(seed)
    if lam == "a tensor":
        lam = torch.from_numpy(np.random.default_rng(seed).random(rollout.r_t.shape))
    slow = slow_gae(rollout, np.broadcast_to(np.asarray(lam), rollout.r_t.shape))
    fast = gae(*args_of(rollout), lam, rollout.valid_t)
    torch.testing.assert_close(fast, torch.from_numpy(slow))
    assert (fast[~rollout.valid_t] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_lambda_return_is_the_mixture_of_n_step_returns(make_rollout, seed, lam):
    rollout = make_rollout(seed)
    fast = lambda_return(*args_of(rollout), lam, rollout.valid_t)
    torch.testing.assert_close(fast, torch.from_numpy(slow_lambda_return(rollout, lam)))
    torch.testing.assert_close(fast - rollout.v_t, gae(*args_of(rollout), lam, rollout.valid_t))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 17, 40])
def test_n_step_return_matches_its_definition(make_rollout, seed, n):
    rollout = make_rollout(seed)
    fast = n_step_return(*args_of(rollout), n, rollout.valid_t)
    torch.testing.assert_close(fast, torch.from_numpy(slow_n_step(rollout, n)))


def test_gae_with_lambda_1_is_return_minus_value_and_with_lambda_0_the_td_error(make_rollout):
    rollout = make_rollout(4)
    full = n_step_return(*args_of(rollout), len(rollout.r_t), rollout.valid_t)
    torch.testing.assert_close(gae(*args_of(rollout), 1.0, rollout.valid_t), full - rollout.v_t)
    td = rollout.r_t + rollout.discount_t * rollout.v_tp1 - rollout.v_t
    torch.testing.assert_close(gae(*args_of(rollout), 0.0, rollout.valid_t), torch.where(rollout.valid_t, td, 0.0))


RECURSIONS = {
    "gae": lambda r, d, v, w, ok: gae(r, d, v, w, 0.9, ok),
    "lambda_return": lambda r, d, v, w, ok: lambda_return(r, d, v, w, 0.9, ok),
    "n_step_return": lambda r, d, v, w, ok: n_step_return(r, d, v, w, 4, ok),
}


@pytest.mark.parametrize("name", RECURSIONS)
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_two_episodes_in_one_rollout_equal_separate_ones(name, ending):
    """Steps: 3 valid ones, a reset, 4 valid ones. obs[3] is the final observation, obs[4] begins the second episode."""
    rng = np.random.default_rng(5)
    r, d = torch.from_numpy(rng.normal(size=(8, 2))), torch.full((8, 2), 0.9, dtype=torch.float64)
    v = torch.from_numpy(rng.normal(size=(9, 2)))
    valid = torch.ones(8, 2, dtype=torch.bool)
    valid[3] = False
    if ending == "terminated":
        d[2] = 0.0
    op = RECURSIONS[name]
    joint = op(r, d, v[:-1], v[1:], valid)
    first, second = slice(0, 3), slice(4, 8)
    for part in (first, second):
        separate = op(r[part], d[part], v[:-1][part], v[1:][part], valid[part])
        torch.testing.assert_close(joint[part], separate, rtol=0, atol=1e-12)


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not():
    """The classic bug in numbers: a reward of 1, then V(final obs) = 10, while the next episode is worth 100."""
    v = torch.tensor([[5.0], [10.0], [100.0], [100.0]])
    r, valid = torch.tensor([[1.0], [0.0], [7.0]]), torch.tensor([[True], [False], [True]])
    for discount, expected in ((0.5, 6.0), (0.0, 1.0)):
        d = torch.tensor([[discount], [0.5], [0.5]])
        assert lambda_return(r, d, v[:-1], v[1:], 1.0, valid)[0].item() == expected
        assert n_step_return(r, d, v[:-1], v[1:], 3, valid)[0].item() == expected
        assert gae(r, d, v[:-1], v[1:], 1.0, valid)[0].item() == expected - 5.0


@pytest.mark.parametrize("name", RECURSIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_values_at_invalid_steps_are_ignored(make_rollout, name, seed):
    rollout, op = make_rollout(seed), RECURSIONS[name]
    clean = op(*args_of(rollout), rollout.valid_t)
    spoiled, v_t, v_tp1 = rollout.spoiled()
    with_garbage = op(spoiled.r_t, spoiled.discount_t, v_t, v_tp1, rollout.valid_t)
    assert with_garbage[rollout.valid_t].equal(clean[rollout.valid_t])
    assert v_tp1[rollout.valid_t].ne(rollout.v_tp1[rollout.valid_t]).any()  # V after termination was replaced too


@pytest.mark.parametrize("name", RECURSIONS)
def test_targets_are_detached(make_rollout, name):
    rollout = make_rollout(0)
    v = rollout.v.clone().requires_grad_()
    assert not RECURSIONS[name](rollout.r_t, rollout.discount_t, v[:-1], v[1:], rollout.valid_t).requires_grad


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 9), rows=st.integers(1, 4), seed=st.integers(0, 10_000), p_end=st.sampled_from([0, 0.3, 1])
)
def test_all_match_the_slow_references_on_any_rollout(make_rollout, length, rows, seed, p_end):
    rollout = make_rollout(seed, length, rows, p_end)
    args, valid = args_of(rollout), rollout.valid_t
    torch.testing.assert_close(lambda_return(*args, 0.6, valid), torch.from_numpy(slow_lambda_return(rollout, 0.6)))
    torch.testing.assert_close(n_step_return(*args, 3, valid), torch.from_numpy(slow_n_step(rollout, 3)))


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_window_return_sums_only_valid_steps(n, dtype):
    """Sequences of n steps with m valid ones and a padded tail, each with and without termination."""
    rng = np.random.default_rng(n)
    steps = [(m, end) for m in range(1, n + 1) for end in (True, False)]
    r, v_last = rng.normal(size=(n, len(steps))), rng.normal(size=len(steps))
    d = np.full((n, len(steps)), 0.9)
    valid = np.zeros((n, len(steps)), bool)
    expected = np.zeros(len(steps))
    for b, (m, terminated) in enumerate(steps):
        valid[:m, b] = True
        d[m - 1, b] = 0.0 if terminated else 0.9
        expected[b] = sum(0.9**k * r[k, b] for k in range(m)) + (0.0 if terminated else 0.9**m * v_last[b])
    r[~valid], d[~valid] = 1e6, -1e6
    fast = window_return(*(torch.from_numpy(x).to(dtype) for x in (r, d, v_last)), torch.from_numpy(valid))
    torch.testing.assert_close(fast, torch.from_numpy(expected).to(dtype))


def test_window_return_is_detached_and_equals_the_first_n_step_return(make_rollout):
    rollout = make_rollout(1, length=5, p_end=0.0)
    v_last = rollout.v[-1].clone().requires_grad_()
    fast = window_return(rollout.r_t, rollout.discount_t, v_last, rollout.valid_t)
    assert not fast.requires_grad
    torch.testing.assert_close(fast, n_step_return(*args_of(rollout), 5, rollout.valid_t)[0])


def test_backward_recursion_by_hand():
    base, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.5], [2.0], [10.0]])
    assert backward_recursion(base, weight, torch.tensor([0.1])).flatten().tolist() == [6.0, 10.0, 4.0]


def test_wrong_calls_raise_clear_errors(make_rollout):
    rollout = make_rollout(0, length=5, rows=4)
    with pytest.raises(ValueError, match=r"gae: v_tp1 has shape \(5, 3\), expected \[T, B\] = \(5, 4\) as r_t"):
        gae(rollout.r_t, rollout.discount_t, rollout.v_t, rollout.v_tp1[:, :3], 0.9, rollout.valid_t)
    with pytest.raises(ValueError, match=r"lambda_return: v_t has shape \(6, 4\)"):
        lambda_return(rollout.r_t, rollout.discount_t, rollout.v, rollout.v_tp1, 0.9, rollout.valid_t)
    with pytest.raises(ValueError, match=r"gae: lambda_t has shape \(4,\)"):
        gae(*args_of(rollout), torch.ones(4), rollout.valid_t)
    with pytest.raises(ValueError, match=r"window_return: v_last has shape \(6, 4\), expected \[B\] = \(4,\) as r_t"):
        window_return(rollout.r_t, rollout.discount_t, rollout.v, rollout.valid_t)
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        n_step_return(*args_of(rollout), 0, rollout.valid_t)
