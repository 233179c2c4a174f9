from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from starling.errors import UserError
from starling.nets.heads import HeadSpec, build_head, orthogonal_head
from starling.ops.distributions import Categorical, Gaussian, MultiCategorical, TanhGaussian

F = 6
DISCRETE, MULTI, BINARY, BOX = (
    spaces.Discrete(4),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-1.0, 1.0, (2,)),
)


def build(kind, space=DISCRETE, **spec):
    torch.manual_seed(0)
    return build_head(F, space, HeadSpec(kind, **spec))


@pytest.mark.parametrize("kind", ["value", "q", "categorical"])
def test_last_layer_is_computed_in_float32_under_autocast(kind):
    """bfloat16 would round values and logits to 8 bits."""
    head, x = build(kind), torch.randn(64, F)
    policy = {}
    for mixed in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            output = head(x.bfloat16() if mixed else x.bfloat16().float())
        policy[mixed] = output.logits if kind == "categorical" else output
    assert policy[True].dtype == torch.float32
    assert torch.equal(policy[True], policy[False])


@pytest.mark.parametrize("lead", [(3,), (5, 3)])
@pytest.mark.parametrize("hidden", [(), (8, 7)])
def test_leading_axes_are_kept(lead, hidden):
    x = torch.randn(*lead, F)
    assert build("value", hidden=hidden)(x).shape == lead
    assert build("q", hidden=hidden)(x).shape == (*lead, 4)
    assert build("dueling", hidden=hidden)(x).shape == (*lead, 4)
    assert build("categorical", hidden=hidden)(x).logits.shape == (*lead, 4)
    assert [part.shape[-1] for part in build("policy", MULTI, hidden=hidden)(x).logits] == [2, 3]
    for kind in ("gaussian", "tanh_gaussian"):
        policy = build(kind, BOX, hidden=hidden)(x)
        assert policy.mean.shape == policy.log_std.shape == (*lead, 2)


@pytest.mark.parametrize(
    ("space", "expected"),
    [(DISCRETE, Categorical), (MULTI, MultiCategorical), (BINARY, MultiCategorical), (BOX, Gaussian)],
)
def test_policy_head_gives_the_distribution_of_the_action_space(space, expected):
    policy = build("policy", space)(torch.randn(3, F))
    assert type(policy) is expected
    action = policy.sample(torch.rand(3, policy.noise_size))
    assert action.shape == (3, *space.shape)
    if space is not BOX:  # a Gaussian policy may leave the box; the env loop clips
        assert all(space.contains(a.numpy().astype(space.dtype)) for a in action)


def test_space_of_a_head_overrides_that_of_the_env():
    head = build_head(F, DISCRETE, HeadSpec("q", space=spaces.Discrete(7)))
    assert head(torch.randn(2, F)).shape == (2, 7)


def test_dueling_is_value_plus_centered_advantage():
    head = build("dueling")
    x = torch.randn(5, F)
    q = head(x)
    torch.testing.assert_close(q.mean(-1), head.value(x).squeeze(-1))
    advantage = head.advantage(x)
    torch.testing.assert_close(q - q.mean(-1, keepdim=True), advantage - advantage.mean(-1, keepdim=True))
    with torch.no_grad():
        head.advantage.bias += 3.0
    torch.testing.assert_close(head(x), q)  # a constant added to all advantages changes nothing


def test_dueling_scales_only_the_gradient_into_the_torso():
    head = build("dueling")
    x = torch.randn(5, F, requires_grad=True)
    weights = torch.randn(5, 4)
    q = head(x)
    assert torch.equal(q, head(x.detach()))
    into_x, into_value = torch.autograd.grad((q * weights).sum(), (x, head.value.weight))
    advantage = head.advantage(x)
    plain = head.value(x) + advantage - advantage.mean(-1, keepdim=True)
    plain_x, plain_value = torch.autograd.grad((plain * weights).sum(), (x, head.value.weight))
    torch.testing.assert_close(into_x, plain_x / math.sqrt(2))
    torch.testing.assert_close(into_value, plain_value)


def test_gaussian_std_is_state_independent_and_learnable():
    head = build("gaussian", BOX, log_std=-0.5)
    policy = head(torch.randn(3, F))
    assert torch.equal(policy.log_std, torch.full((3, 2), -0.5))
    policy.log_prob(torch.randn(3, 2)).sum().backward()
    assert (head.log_std.grad != 0).all()


def test_tanh_gaussian_std_depends_on_the_state_within_limits():
    head = build("tanh_gaussian", BOX, log_std_range=(-1.0, 0.5))
    policy = head(100 * torch.randn(64, F))
    assert type(policy) is TanhGaussian
    assert policy.log_std.min() == -1.0
    assert policy.log_std.max() == 0.5
    near = head(0.1 * torch.randn(2, F)).log_std
    assert not torch.equal(near[0], near[1])


@pytest.mark.parametrize(
    ("kind", "space", "gain"),
    [
        ("value", DISCRETE, 1.0),
        ("q", DISCRETE, 1.0),
        ("dueling", DISCRETE, 1.0),
        ("policy", DISCRETE, 0.01),
        ("policy", BOX, 0.01),
        ("tanh_gaussian", BOX, 0.01),
    ],
)
def test_orthogonal_gains_per_head(kind, space, gain):
    spec = HeadSpec(kind, hidden=(5,))
    head = build_head(F, space, spec)
    orthogonal_head(head, spec.last_gain)
    for branch in head.children():
        hidden, last = branch[0].linears[0], branch[-1]
        torch.testing.assert_close(hidden.weight @ hidden.weight.T, 2.0 * torch.eye(5))
        rows = last.out_features
        torch.testing.assert_close(
            last.weight @ last.weight.T, gain**2 * torch.eye(rows), rtol=1e-4, atol=1e-8 + 1e-6 * gain
        )
        assert not last.bias.any()
    assert HeadSpec(kind, gain=0.3).last_gain == 0.3


@pytest.mark.parametrize(
    ("kind", "space", "message"),
    [
        ("q", BOX, "needs discrete actions"),
        ("dueling", MULTI, "needs discrete actions"),
        ("categorical", BOX, "needs discrete actions"),
        ("multi_categorical", DISCRETE, "needs MultiDiscrete or MultiBinary"),
        ("policy", spaces.Box(-1, 1, (2, 2), np.float32), "one axis"),
        ("policy", spaces.Dict(a=DISCRETE), "one axis"),
        ("tanh_gaussian", DISCRETE, "needs a Box"),
        ("duelling", DISCRETE, "did you mean 'dueling'"),
    ],
)
def test_invalid_heads_raise_clear_errors(kind, space, message):
    with pytest.raises(UserError, match=message):
        build(kind, space)


def test_heads_have_only_their_own_parameters():
    head = build("dueling", hidden=(8,))
    assert isinstance(head, nn.Module)
    shapes = sorted(tuple(p.shape) for p in head.parameters())
    assert shapes == sorted([(8, F), (8,), (1, 8), (1,), (8, F), (8,), (4, 8), (4,)])
