"""An ensemble is equivalent to independent networks; critics take observations and actions."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from starling.config.parts import NetConfig, TorsoConfig
from starling.errors import UserError
from starling.nets.critics import Ensemble, build_critics
from starling.types import EnvSpec

VECTOR = spaces.Box(-1, 1, (5,), np.float32)
BOX = spaces.Box(-1, 1, (2,), np.float32)
IMAGE_AND_VECTOR = spaces.Dict(image=spaces.Box(0, 255, (1, 8, 8), np.uint8), vector=VECTOR)


def member(ensemble, index):
    """One member of the ensemble as a plain network."""
    layers = []
    for layer in (*ensemble.hidden, ensemble.last):
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
        linear.weight.data, linear.bias.data = layer.weight[index].T, layer.bias[index, 0]
        layers.append(linear)
        if layer.scale is not None:
            layers.append(nn.LayerNorm(layer.weight.shape[2]))
            layers[-1].weight.data, layers[-1].bias.data = layer.scale[index, 0], layer.shift[index, 0]
        layers.append(nn.Tanh())
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_members_are_independent_networks(norm, compiling, outputs, monkeypatch):
    torch.manual_seed(0)
    ensemble, x = Ensemble(3, [5, 8, 7, outputs], "tanh", norm), torch.randn(6, 5)
    for parameter in ensemble.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: compiling)  # use the implementation meant for compiling
    outputs_of_all = ensemble(x)
    assert outputs_of_all.shape == (3, 6, outputs)
    for i in range(3):
        torch.testing.assert_close(outputs_of_all[i], member(ensemble, i)(x))
    assert not torch.equal(outputs_of_all[0], outputs_of_all[1])


@pytest.mark.parametrize("hidden", [[8], [8, 7], [8, 7, 9]])
@pytest.mark.parametrize("members", [2, 3])
def test_lowest_sends_gradients_only_through_the_lowest_critic(hidden, members, monkeypatch):
    """In the implementation meant for compiling and with torch's own backward pass."""
    torch.manual_seed(0)
    critics = build_critics(EnvSpec("x", VECTOR, BOX), NetConfig(torso=TorsoConfig(hidden=hidden)), members)
    features, action = torch.randn(40, 5), torch.rand(40, 2, requires_grad=True)
    with torch.no_grad():
        critics.ensemble.last.bias -= critics(features, action).mean(1)[:, None, None]
    q = critics(features, action)
    assert len(q.argmin(0).unique()) == members, "every critic is the lowest somewhere"
    expected, grad_outputs = q.amin(0), torch.randn(40)
    (slope,) = torch.autograd.grad(expected, action, grad_outputs)
    for compiling in (False, True):
        monkeypatch.setattr("torch.compiler.is_compiling", lambda compiling=compiling: compiling)
        found = critics.lowest(features, action)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, action, grad_outputs)[0], slope)


def test_critic_that_is_never_the_lowest_has_no_influence(monkeypatch):
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    critics = build_critics(EnvSpec("x", VECTOR, BOX), NetConfig(torso=TorsoConfig(hidden=[8, 7])), members=2)
    with torch.no_grad():
        critics.ensemble.last.bias[1] += 100.0
    features, action = torch.randn(6, 5), torch.rand(6, 2, requires_grad=True)
    lowest, first = critics.lowest(features, action), critics(features, action)[0]
    torch.testing.assert_close(lowest, first)
    slopes = [torch.autograd.grad(q.sum(), action)[0] for q in (lowest, first)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("torso", [TorsoConfig(hidden=[8], norm="layer"), TorsoConfig(hidden=[8], activation="tanh")])
def test_lowest_supports_norms_and_other_activations(torso, monkeypatch):
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    critics = build_critics(EnvSpec("x", VECTOR, BOX), NetConfig(torso=torso), members=2)
    features, action = torch.randn(6, 5), torch.rand(6, 2, requires_grad=True)
    torch.testing.assert_close(critics.lowest(features, action), critics(features, action).amin(0))


def test_weights_are_initialized_as_in_torch_and_differ_between_members():
    ensemble = Ensemble(2, [100, 50, 1], "relu")
    weight = ensemble.hidden[0].weight.detach()
    assert weight.abs().max() <= 0.1
    assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert not torch.equal(weight[0], weight[1])


def test_orthogonal_initialization():
    ensemble = Ensemble(2, [6, 4, 3], "relu")
    ensemble.orthogonal()
    for first, last in zip(ensemble.hidden[0].weight, ensemble.last.weight, strict=True):
        torch.testing.assert_close(first.T @ first, 2.0 * torch.eye(4))
        torch.testing.assert_close(last.T @ last, torch.eye(3))


@pytest.mark.parametrize("observation", [VECTOR, IMAGE_AND_VECTOR])
def test_critics_depend_on_observations_and_actions(observation):
    net = NetConfig(torso=TorsoConfig(hidden=[16], channels=[4], kernels=[3], strides=[2]), init="orthogonal")
    critics = build_critics(EnvSpec("x", observation, BOX), net, members=2)
    obs = {"image": torch.randint(256, (3, 1, 8, 8)).to(torch.uint8), "vector": torch.randn(3, 5)}
    obs_input = obs if observation is IMAGE_AND_VECTOR else obs["vector"]
    action = torch.rand(3, 2, requires_grad=True)
    q = critics(critics.encode(obs_input), action)
    assert q.shape == (2, 3)
    (slope,) = torch.autograd.grad(q.sum(), action)
    assert (slope != 0).any()
    discrete = build_critics(EnvSpec("x", observation, spaces.Discrete(4)), net, members=2)
    assert discrete(discrete.encode(obs_input)).shape == (2, 3, 4)


def test_unsupported_action_spaces_are_rejected():
    with pytest.raises(UserError, match="critics need Discrete actions or a Box of them with one axis; x has"):
        build_critics(EnvSpec("x", VECTOR, spaces.MultiDiscrete([2, 2])), NetConfig(), members=2)
