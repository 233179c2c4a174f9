"""What the learner does on a device whose results the host sees only at the end of an update."""

import copy

import pytest
import torch
from torch import nn

from starling.config.parts import OptimizerConfig
from starling.config.torch_names import OPTIMIZERS
from starling.learner.optimizer import ELEMENTWISE, FlatOptimizer
from starling.runtime.shared_weights import SharedWeights, WeightReader, WeightWriter, copy_size
from starling.types import Progress, RunLength

STEPS = 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def optimizer_of(model, name, clip=0.5):
    return FlatOptimizer(OptimizerConfig(name=name, args={"lr": 0.01}, clip_norm=clip), model.parameters(), RunLength())


def batch_of(step, optimizer):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step)).to(optimizer.flat.device)


def take_step(model, optimizer, x, factor=1.0):
    optimizer.set_gradients(torch.autograd.grad(factor * model(x).square().sum(), optimizer.parameters))
    norm = optimizer.gradient_norm()
    if norm.device.type == "cpu":
        optimizer.apply(float(norm))
    else:
        optimizer.apply_if(norm.isfinite(), norm)


def assert_close(there, here):
    for mine, theirs in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_a_step_without_the_host_equals_one_of_a_cpu(name, mock_device):
    here = network()
    there = copy.deepcopy(here).to("mock")
    mine, theirs = optimizer_of(there, name), optimizer_of(here, name)
    for step in range(STEPS):
        take_step(here, theirs, batch_of(step, theirs))
        x = batch_of(step, mine)
        with mock_device.counting() as counts:
            take_step(there, mine, x)
        assert step == 0 or counts.totals == (0, 0, 0)
    assert_close(there, here)


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
@pytest.mark.parametrize("bad", [0, 2])
def test_a_step_that_is_not_finite_changes_nothing(name, bad, mock_device):
    """The steps after it are those of an optimizer that never saw it."""
    here = network()
    there = copy.deepcopy(here).to("mock")
    mine, theirs = optimizer_of(there, name), optimizer_of(here, name)
    for step in range(STEPS):
        if step == bad:
            take_step(there, mine, batch_of(step, mine), factor=float("nan"))
        take_step(there, mine, batch_of(step, mine))
        take_step(here, theirs, batch_of(step, theirs))
    assert_close(there, here)


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "SGD", "RMSpropTF", "NAdam"])
def test_moments_move_between_devices(name, mock_device):
    here = network()
    there = copy.deepcopy(here).to("mock")
    mine, theirs = optimizer_of(there, name), optimizer_of(here, name)
    take_step(here, theirs, batch_of(0, theirs))
    there.load_state_dict(here.state_dict())
    mine.set_state(copy.deepcopy(theirs.get_state()))
    take_step(there, mine, batch_of(1, mine))
    take_step(here, theirs, batch_of(1, theirs))
    assert_close(there, here)
    back = network()
    last = optimizer_of(back, name)
    back.load_state_dict(there.state_dict())
    state = mine.get_state()
    state["moments"] = {
        i: {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in moments.items()}
        for i, moments in state["moments"].items()
    }
    last.set_state(state)
    take_step(back, last, batch_of(2, last))
    take_step(here, theirs, batch_of(2, theirs))
    assert_close(back, here)


def test_every_optimizer_is_covered():
    assert set(OPTIMIZERS) >= ELEMENTWISE - {"RMSpropTF"}


def test_weights_are_published_and_read_in_one_copy(mock_device):
    source = nn.Sequential(network(), nn.BatchNorm1d(2)).to("mock")
    readers = [copy.deepcopy(source), copy.deepcopy(source).cpu()]
    shared = SharedWeights(copy_size(source))
    writer = WeightWriter(shared, source)
    with torch.no_grad():
        for tensor in source.state_dict().values():
            tensor.fill_(3)
    with mock_device.counting() as counts:
        writer.publish(Progress(1, 1, 0.5))
    assert counts.totals == (1, 0, 1)
    for model, expected in zip(readers, [(1, 1, 0), (0, 0, 0)], strict=True):
        reader = WeightReader(shared, model)
        with mock_device.counting() as counts:
            assert reader.refresh() == Progress(1, 1, 0.5)
        assert counts.totals == expected
        assert all((tensor == 3).all() for tensor in model.state_dict().values())
