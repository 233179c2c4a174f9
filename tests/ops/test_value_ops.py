import numpy as np
import pytest
import torch

from starling.ops.returns import n_step_return
from starling.ops.value import RESCALED, batched_index, huber, n_step_target, td_error


def random_q(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_take_matches_its_definition():
    q = random_q(0, 4, 3, 5)
    action = torch.from_numpy(np.random.default_rng(2).integers(5, size=(4, 3)))
    taken = batched_index(q, action.int())
    assert all(taken[t, b] == q[t, b, action[t, b]] for t in range(4) for b in range(3))
    assert batched_index(q[0, 0], action[0, 0]).shape == ()


def test_rewards_and_bootstraps_are_added_outside_h(make_rollout):
    rollout = make_rollout(1)
    v_t, v_tp1, valid = rollout.v_t, rollout.v_tp1, rollout.valid_t
    unscaled = [RESCALED.inverse(v) for v in (v_t, v_tp1)]
    expected = RESCALED.apply(n_step_return(rollout.r_t, rollout.discount_t, *unscaled, 3, valid))
    target = n_step_target(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid, RESCALED)
    torch.testing.assert_close(target, expected)
    assert target[~valid].equal(v_t[~valid])
    plain = n_step_target(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid)
    assert plain.equal(n_step_return(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid))


def test_td_error_has_a_gradient_only_in_values_of_valid_steps():
    v, target = random_q(0, 3, 2).requires_grad_(), random_q(1, 3, 2).requires_grad_()
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    error = td_error(v, target, valid)
    assert error[valid].equal((target - v)[valid])
    assert (error[~valid] == 0).all()
    error.sum().backward()
    assert v.grad.equal(-valid.double())
    assert target.grad is None


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_loss_and_gradient_match_torch(delta):
    x = torch.linspace(-5, 5, 101, dtype=torch.float64).requires_grad_()
    y = torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)
    (expected_gradient,) = torch.autograd.grad(y.sum(), x)
    ours = huber(x, delta)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    torch.testing.assert_close(ours, y)
    torch.testing.assert_close(gradient, expected_gradient)


def test_shape_errors_name_the_argument():
    with pytest.raises(
        ValueError, match=r"batched_index: action has shape \(2, 1\), expected \[\.\.\.\] = \(2,\) as q"
    ):
        batched_index(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="td_error: target_t has shape"):
        td_error(torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 3, dtype=torch.bool))
