"""Dueling heads have a hidden layer per branch: with single linear layers Q would be a plain linear head."""

import pytest
import torch

from starling.config.load import load
from starling.launch.plan import RunPlan, build_model


def head_of(preset, *settings):
    model = build_model(RunPlan.from_config(load(preset, settings)))
    agent = getattr(model, "agent", model)
    head = agent.heads["extrinsic"]
    return head, next(head.parameters()).shape[1]


def is_affine(head, size):
    a, b = torch.randn(2, 6, size)
    middle, ends = head((a + b) / 2), (head(a) + head(b)) / 2
    return torch.allclose(middle, ends, atol=1e-4)


@pytest.mark.parametrize("preset", ["apex-minatar-breakout", "r2d2-cartpole", "ngu-deepsea", "agent57-deepsea"])
def test_dueling_by_default_has_a_hidden_layer_per_branch(preset):
    head, size = head_of(preset)
    assert not is_affine(head, size)


def test_default_hidden_width_is_that_of_the_paper():
    head, _ = head_of("dqn-cartpole", "algo.dueling=true")
    assert [layer.out_features for layer in head.value.modules() if isinstance(layer, torch.nn.Linear)] == [512, 1]
    assert [layer.out_features for layer in head.advantage.modules() if isinstance(layer, torch.nn.Linear)] == [512, 2]


def test_dueling_without_hidden_layers_is_a_linear_head():
    head, size = head_of("dqn-cartpole", "algo.dueling=true", "algo.dueling_hidden=[]")
    assert is_affine(head, size)


def test_dueling_branches_may_start_right_after_the_convolutions():
    head, size = head_of("apex-minatar-breakout", "net.torso.hidden=[]")
    assert size == 16 * 8 * 8  # a 3x3 convolution of 10x10 with 16 channels
    assert not is_affine(head, size)
