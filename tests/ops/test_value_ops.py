import numpy as np
import pytest
import torch

from starling.ops.returns import n_step_return, window_return
from starling.ops.transforms import IDENTITY, RESCALED
from starling.ops.value import (
    double_q_error,
    double_q_value,
    huber,
    n_step_target,
    q_error,
    q_target_value,
    take,
    td_error,
    td_target,
    window_target,
)


def random_q(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_take_and_bootstrap_values_read_as_their_definitions():
    online, target = random_q(0, 4, 3, 5), random_q(1, 4, 3, 5)
    action = torch.from_numpy(np.random.default_rng(2).integers(5, size=(4, 3)))
    taken, best, double = take(online, action.int()), q_target_value(target), double_q_value(online, target)
    for t in range(4):
        for b in range(3):
            assert taken[t, b] == online[t, b, action[t, b]]
            assert best[t, b] == max(target[t, b])
            assert double[t, b] == target[t, b, np.argmax(online[t, b].numpy())]
    assert (double < best).any()
    assert take(online[0, 0], action[0, 0]).shape == ()


@pytest.mark.parametrize("transform", [IDENTITY, RESCALED], ids=["identity", "h"])
def test_one_step_errors(transform):
    q_t, online, target = (random_q(seed, 6, 3).requires_grad_() for seed in range(3))
    action, r, d = torch.tensor([0, 1, 2, 0, 1, 2]), random_q(3, 6), torch.tensor([0.9, 0.0] * 3).double()
    errors = {
        "q": q_error(q_t, action, r, d, target, transform),
        "double": double_q_error(q_t, action, r, d, online, target, transform),
    }
    for b in range(6):
        bootstrap = {"q": target[b].max(), "double": target[b, online[b].argmax()]}
        for name, error in errors.items():
            expected = transform.apply(r[b] + d[b] * transform.inverse(bootstrap[name])) - q_t[b, action[b]]
            assert error[b].item() == pytest.approx(expected.item())
    sum(error.sum() for error in errors.values()).backward()
    assert q_t.grad is not None
    assert online.grad is None
    assert target.grad is None


def test_targets_keep_rewards_and_bootstraps_outside_h(make_rollout):
    rollout = make_rollout(1)
    v_t, v_tp1, valid = rollout.v_t, rollout.v_tp1, rollout.valid_t
    unscaled = [RESCALED.inverse(v) for v in (v_t, v_tp1)]
    expected = RESCALED.apply(n_step_return(rollout.r_t, rollout.discount_t, *unscaled, 3, valid))
    target = n_step_target(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid, RESCALED)
    torch.testing.assert_close(target, expected)
    assert target[~valid].equal(v_t[~valid])
    plain = n_step_target(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid)
    assert plain.equal(n_step_return(rollout.r_t, rollout.discount_t, v_t, v_tp1, 3, valid))


def test_window_target(make_rollout):
    rollout = make_rollout(1, length=4, p_end=0.0)
    args, v_last = (rollout.r_t, rollout.discount_t), rollout.v[-1].clone().requires_grad_()
    target = window_target(*args, v_last, rollout.valid_t, RESCALED)
    assert not target.requires_grad
    expected = RESCALED.apply(window_return(*args, RESCALED.inverse(v_last), rollout.valid_t))
    torch.testing.assert_close(target, expected)
    one = window_target(rollout.r_t[:1], rollout.discount_t[:1], v_last, rollout.valid_t[:1], RESCALED)
    torch.testing.assert_close(one, td_target(rollout.r_t[0], rollout.discount_t[0], v_last, RESCALED))


def test_td_error_has_gradient_in_the_value_of_valid_rows_alone():
    v, target = random_q(0, 3, 2).requires_grad_(), random_q(1, 3, 2).requires_grad_()
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    error = td_error(v, target, valid)
    assert error[valid].equal((target - v)[valid])
    assert (error[~valid] == 0).all()
    error.sum().backward()
    assert v.grad.equal(-valid.double())
    assert target.grad is None


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_against_torch_with_gradient(delta):
    x = torch.linspace(-5, 5, 101, dtype=torch.float64).requires_grad_()
    y = torch.nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none", delta=delta)
    (expected_gradient,) = torch.autograd.grad(y.sum(), x)
    ours = huber(x, delta)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    torch.testing.assert_close(ours, y)
    torch.testing.assert_close(gradient, expected_gradient)


def test_shape_errors_are_clear():
    with pytest.raises(ValueError, match=r"take: action has shape \(2, 1\), expected \[\.\.\.\] = \(2,\) as q"):
        take(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"double_q_value: q_target_tp1 has shape \(2, 4\)"):
        double_q_value(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="td_error: target_t has shape"):
        td_error(torch.zeros(2, 3), torch.zeros(2), torch.ones(2, 3, dtype=torch.bool))
