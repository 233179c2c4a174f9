"""One flat buffer gives the same numbers as one tensor a parameter, for every optimizer, and resumes to the bit."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from starling.config.parts import OptimizerConfig, ScheduleConfig
from starling.errors import UserError
from starling.roles.optimizer import ELEMENTWISE, FlatOptimizer


def a_net():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))


def a_loss(net, step):
    x = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(step))
    return net(x).square().mean()


@pytest.mark.parametrize("name", [*sorted(ELEMENTWISE), "Adafactor"])
def test_updates_equal_plain_torch(name):
    net, plain = a_net(), a_net()
    ours = FlatOptimizer(OptimizerConfig(name=name, args={"lr": 0.01}, clip_norm=0.05), net.parameters(), 10)
    theirs = getattr(torch.optim, name)(plain.parameters(), lr=0.01)
    for step in range(5):
        ours.take(torch.autograd.grad(a_loss(net, step), ours.parameters))
        ours.apply(ours.gradient_norm())
        theirs.zero_grad()
        a_loss(plain, step).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        theirs.step()
    for mine, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_parameters_are_views_that_keep_their_shape_strides_and_values():
    net, before = a_net(), a_net()
    ours = FlatOptimizer(OptimizerConfig(), net.parameters(), 1)
    for mine, other in zip(net.parameters(), before.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.stride() == other.stride()
        assert mine.untyped_storage().data_ptr() == ours.flat.untyped_storage().data_ptr()


def test_state_resumes_to_the_bit_with_its_schedule():
    schedule = ScheduleConfig(name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"})
    config = OptimizerConfig(name="Adam", args={"lr": 0.1}, schedule=schedule)
    net = a_net()
    ours = FlatOptimizer(config, net.parameters(), planned_versions=8)

    def advance(optimizer, module, steps):
        for step in steps:
            optimizer.take(torch.autograd.grad(a_loss(module, step), optimizer.parameters))
            optimizer.apply(optimizer.gradient_norm())
            optimizer.end_version()

    advance(ours, net, range(3))
    saved, weights = copy.deepcopy(ours.get_state()), copy.deepcopy(net.state_dict())
    advance(ours, net, range(3, 6))
    again = a_net()
    other = FlatOptimizer(config, again.parameters(), planned_versions=8)
    other.set_state(saved)
    again.load_state_dict(weights)
    advance(other, again, range(3, 6))
    assert ours.learning_rate == other.learning_rate == pytest.approx(0.1 * 2 / 8)
    for mine, theirs in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_torchs_compiler_is_not_loaded_for_what_is_not_compiled():
    code = """
import sys, torch
from starling.config.parts import OptimizerConfig, ScheduleConfig
from starling.roles.optimizer import FlatOptimizer
schedule = ScheduleConfig(name="LinearLR", args={"total_iters": "run"})
for name in ("Adam", "RMSprop"):
    x = torch.nn.Parameter(torch.ones(3))
    ours = FlatOptimizer(OptimizerConfig(name=name, schedule=schedule), [x], 5)
    for _ in range(2):
        ours.take(torch.autograd.grad(x.square().sum(), [x]))
        ours.apply(ours.gradient_norm())
        ours.end_version()
    ours.set_state(ours.get_state())
    assert (x < 1).all(), name
    assert "torch._dynamo" not in sys.modules, name
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OptimizerConfig(name="Adm"), "unknown optimizer 'Adm'; did you mean 'Adam"),
        (OptimizerConfig(name="Adam", args={"lrr": 1}), "optimizer Adam with"),
        (OptimizerConfig(name="Adam", args={"lr": -1.0}), "optimizer Adam with"),
        (OptimizerConfig(schedule=ScheduleConfig(name="LinearL")), "schedule 'LinearL'; did you mean 'LinearLR'"),
        (OptimizerConfig(schedule=ScheduleConfig(name="ReduceLROnPlateau")), "unsupported schedule"),
        (OptimizerConfig(schedule=ScheduleConfig(name="StepLR", args={})), "schedule StepLR with"),
    ],
)
def test_mistakes_get_one_clear_line(config, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        FlatOptimizer(config, a_net().parameters(), 1)
    assert message in str(caught.value)
