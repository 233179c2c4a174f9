"""TensorFlow's RMSprop compared with the update rule written out."""

import math

import pytest
import torch

from starling.learner.rmsprop_tf import RMSpropTF


def slow_rmsprop(start, gradients, *, lr, alpha, eps, momentum, centered):
    """One parameter, one gradient at a time."""
    x, ms, mg, mom = start, 1.0, 0.0, 0.0
    for g in gradients:
        ms = alpha * ms + (1 - alpha) * g * g
        mg = alpha * mg + (1 - alpha) * g if centered else 0.0
        mom = momentum * mom + lr * g / math.sqrt(ms - mg * mg + eps)
        x -= mom
    return x


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_updates_follow_the_rule(momentum, centered):
    settings = {"lr": 0.05, "alpha": 0.9, "eps": 0.01, "momentum": momentum, "centered": centered}
    torch.manual_seed(0)
    start, gradients = torch.randn(7, dtype=torch.float64), torch.randn(20, 7, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = RMSpropTF([parameter], **settings)
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    expected = [slow_rmsprop(start[i].item(), gradients[:, i].tolist(), **settings) for i in range(7)]
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=torch.float64))


def first_step(optimizer):
    parameter = torch.nn.Parameter(torch.zeros(1))
    made = optimizer([parameter])
    parameter.grad = torch.full((1,), 1e-3)
    made.step()
    return abs(parameter.item())


@pytest.mark.parametrize("settings", [{"alpha": 0.99, "eps": 0.1}, {"alpha": 0.95, "eps": 1.5e-7}])
def test_first_step_is_small_where_that_of_torch_is_large(settings):
    ours = first_step(lambda params: RMSpropTF(params, lr=1e-3, **settings))
    theirs = first_step(lambda params: torch.optim.RMSprop(params, lr=1e-3, **settings))
    assert ours == pytest.approx(1e-3 * 1e-3 / math.sqrt(settings["alpha"] + settings["eps"]), rel=1e-3)
    assert theirs > 9 * ours


@pytest.mark.parametrize("wrong", [{"lr": -1}, {"alpha": 1.5}, {"eps": -1}, {"momentum": float("nan")}])
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RMSpropTF([torch.nn.Parameter(torch.zeros(1))], **wrong)
