"""One flat buffer gives the same updates as one tensor per parameter, for every optimizer, and resumes bitwise."""

import copy
import inspect
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from starling.config.parts import OptimizerConfig, ScheduleConfig
from starling.config.torch_names import NUMBERS, OPTIMIZERS, SCHEDULES, UNUSABLE_OPTIMIZERS, UNUSABLE_SCHEDULES
from starling.errors import UserError
from starling.learner.optimizer import ELEMENTWISE, FlatOptimizer, check_optimizer, optimizer_class
from starling.learner.schedule_clock import schedule_clock
from starling.state_io import pack, unpack
from starling.types import Progress, RunLength


def make_net():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))


def loss_at(net, step):
    x = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(step))
    return net(x).square().mean()


PLANNED = 8
RUN = RunLength(80, None, PLANNED, updates_per_step=0.1)
"""Versions of a run."""


def take_steps(optimizer, module, steps):
    for step in steps:
        optimizer.set_gradients(torch.autograd.grad(loss_at(module, step), optimizer.parameters))
        optimizer.apply(float(optimizer.gradient_norm()))
        optimizer.end_update(Progress(fraction=(step + 1) / PLANNED))


@pytest.mark.parametrize("name", [*sorted(ELEMENTWISE), "Adafactor"])
def test_updates_equal_plain_torch(name):
    net, plain = make_net(), make_net()
    ours = FlatOptimizer(OptimizerConfig(name=name, args={"lr": 0.01}, clip_norm=0.05), net.parameters(), RunLength())
    theirs = optimizer_class(name)(plain.parameters(), lr=0.01)
    for step in range(5):
        ours.set_gradients(torch.autograd.grad(loss_at(net, step), ours.parameters))
        ours.apply(float(ours.gradient_norm()))
        theirs.zero_grad()
        loss_at(plain, step).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        theirs.step()
    for mine, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_parameters_are_views_that_keep_their_shape_strides_and_values():
    net, before = make_net(), make_net()
    ours = FlatOptimizer(OptimizerConfig(), net.parameters(), RunLength())
    for mine, other in zip(net.parameters(), before.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert mine.stride() == other.stride()
        assert mine.untyped_storage().data_ptr() == ours.flat.untyped_storage().data_ptr()


def test_optimizer_and_schedule_resume_bitwise():
    schedule = ScheduleConfig(name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": "run"})
    config = OptimizerConfig(name="Adam", args={"lr": 0.1}, schedule=schedule)
    net = make_net()
    ours = FlatOptimizer(config, net.parameters(), RUN)

    take_steps(ours, net, range(3))
    saved, weights = copy.deepcopy(ours.get_state()), copy.deepcopy(net.state_dict())
    take_steps(ours, net, range(3, 6))
    restored_net = make_net()
    other = FlatOptimizer(config, restored_net.parameters(), RUN)
    other.set_state(saved)
    restored_net.load_state_dict(weights)
    take_steps(other, restored_net, range(3, 6))
    assert ours.learning_rate == other.learning_rate == pytest.approx(0.1 * 2 / 8)
    for mine, theirs in zip(net.parameters(), restored_net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_eager_optimizers_do_not_import_the_torch_compiler():
    code = """
import sys, torch
from starling.config.parts import OptimizerConfig, ScheduleConfig
from starling.learner.optimizer import FlatOptimizer
from starling.types import Progress, RunLength
schedule = ScheduleConfig(name="LinearLR", args={"total_iters": "run"})
for name in ("Adam", "RMSprop"):
    x = torch.nn.Parameter(torch.ones(3))
    ours = FlatOptimizer(OptimizerConfig(name=name, schedule=schedule), [x], RunLength(50, None, 5))
    for _ in range(2):
        ours.set_gradients(torch.autograd.grad(x.square().sum(), [x]))
        ours.apply(float(ours.gradient_norm()))
        ours.end_update(Progress(fraction=0.2))
    ours.set_state(ours.get_state())
    assert (x < 1).all(), name
    assert "torch._dynamo" not in sys.modules, name
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def classes_in(module, base):
    """Names of the public subclasses of `base` in a torch module."""
    members = vars(module).items()
    return {n for n, c in members if isinstance(c, type) and issubclass(c, base) and c is not base and n[0] != "_"}


def changes_the_network(name):
    net, before = make_net(), make_net()
    try:
        take_steps(
            FlatOptimizer(OptimizerConfig.model_construct(name=name, args={"lr": 0.01}), net.parameters(), RunLength()),
            net,
            range(3),
        )
    except (UserError, TypeError, RuntimeError):
        return False
    return not torch.equal(net[0].weight, before[0].weight)


def test_usable_optimizers_are_those_of_torch_that_train_a_network():
    all_names = {*classes_in(torch.optim, torch.optim.Optimizer), "RMSpropTF"}
    assert {name for name in all_names if changes_the_network(name)} == set(OPTIMIZERS)
    assert all_names == {*OPTIMIZERS, *UNUSABLE_OPTIMIZERS}


ARGUMENTS = {
    "ConstantLR": {},
    "CosineAnnealingLR": {"T_max": "run"},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.001, "max_lr": 0.01, "step_size_up": 3},
    "ExponentialLR": {"gamma": 0.5},
    "LinearLR": {"total_iters": "run"},
    "MultiStepLR": {"milestones": [1, 5], "gamma": 0.5},
    "OneCycleLR": {"max_lr": 0.01, "total_steps": "run"},
    "PolynomialLR": {"total_iters": "run"},
    "StepLR": {"step_size": 2},
}


def test_list_of_numeric_arguments_is_complete():
    flags = {"amsgrad", "capturable", "centered", "cycle_momentum", "decoupled_weight_decay", "differentiable"}
    flags |= {"foreach", "fused", "maximize", "nesterov", "three_phase"}
    words = {"anneal_strategy", "mode", "scale_fn", "scale_mode"}
    all_names = set()
    for made in [*map(optimizer_class, OPTIMIZERS), *(getattr(torch.optim.lr_scheduler, name) for name in SCHEDULES)]:
        all_names |= inspect.signature(made).parameters.keys() - {"params", "optimizer"}
    assert all_names == NUMBERS | flags | words


def test_every_torch_schedule_is_listed_as_usable_or_unusable():
    lr_scheduler = torch.optim.lr_scheduler
    all_names = classes_in(lr_scheduler, lr_scheduler.LRScheduler) | {"ReduceLROnPlateau"}
    assert all_names == {*SCHEDULES, *UNUSABLE_SCHEDULES}
    assert set(ARGUMENTS) == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_every_schedule_changes_the_learning_rate_and_is_restored(name, optimizer):
    schedule = ScheduleConfig(name=name, args=ARGUMENTS[name])
    config = OptimizerConfig(name=optimizer, args={"lr": 0.1}, schedule=schedule)
    rates = []
    net = make_net()
    ours = FlatOptimizer(config, net.parameters(), RUN)
    for step in range(7):
        if step == 3:
            saved, weights = pack(ours.get_state()), copy.deepcopy(net.state_dict())
        take_steps(ours, net, [step])
        rates.append(ours.learning_rate)
    assert len(set(rates)) > 1
    restored_net = make_net()
    other = FlatOptimizer(config, restored_net.parameters(), RUN)
    other.set_state(unpack(saved))
    restored_net.load_state_dict(weights)
    take_steps(other, restored_net, range(3, 7))
    assert other.learning_rate == rates[-1]
    for mine, theirs in zip(net.parameters(), restored_net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_schedule_keeps_its_final_learning_rate():
    """A run may have a few more updates than planned."""
    schedule = ScheduleConfig(name="OneCycleLR", args={"max_lr": 0.1, "total_steps": "run", "final_div_factor": 10})
    net = make_net()
    ours = FlatOptimizer(OptimizerConfig(name="SGD", schedule=schedule), net.parameters(), RUN)
    take_steps(ours, net, range(7))
    assert ours.learning_rate == pytest.approx(0.1 / 25 / 10)
    take_steps(ours, net, range(7, 11))
    assert ours.learning_rate == pytest.approx(0.1 / 25 / 10)


def test_changed_milestones_apply_from_the_current_update_on():
    """As in a branch of a run."""

    def optimizer(milestones):
        schedule = ScheduleConfig(name="MultiStepLR", args={"milestones": milestones, "gamma": 0.5})
        return FlatOptimizer(
            OptimizerConfig(args={"lr": 0.1}, schedule=schedule), make_net().parameters(), RunLength(80, None, 8)
        )

    old, new = optimizer([1, 2]), optimizer([1, 4])
    for _ in range(3):
        old.apply(1.0)
        old.end_update(Progress(fraction=0.0))
    new.set_state(unpack(pack(old.get_state())))
    new.apply_settings()
    assert new.learning_rate == pytest.approx(0.05)
    new.apply(1.0)
    new.end_update(Progress(fraction=0.0))
    assert new.learning_rate == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (OptimizerConfig, "Adm", "unknown optimizer 'Adm'; did you mean 'Adam'"),
        (OptimizerConfig, "Optimizer", "unknown optimizer 'Optimizer' (use one of"),
        (OptimizerConfig, "LBFGS", "optimizer LBFGS cannot be used: it evaluates the loss several times per step"),
        (OptimizerConfig, "SparseAdam", "optimizer SparseAdam cannot be used: it takes sparse gradients only"),
        (OptimizerConfig, "Muon", "optimizer Muon cannot be used: it optimizes matrices only"),
        (ScheduleConfig, "LinearL", "unknown schedule 'LinearL'; did you mean 'LinearLR'"),
        (ScheduleConfig, "Counter", "unknown schedule 'Counter' (use one of"),
        (ScheduleConfig, "None", "unknown schedule 'None' (use one of"),
        (ScheduleConfig, "ReduceLROnPlateau", "schedule ReduceLROnPlateau cannot be used: it follows a metric"),
    ],
)
def test_only_usable_names_are_accepted_and_suggested(kind, name, message):
    with pytest.raises(ValidationError) as caught:
        kind(name=name)
    (problem,) = caught.value.errors()
    text = problem["msg"].removeprefix("Value error, ")
    assert text.startswith(message)
    assert "\n" not in text
    suggested = text.partition("did you mean")[2].partition("?")[0]
    assert {word.strip("' ") for word in suggested.split(" or ") if word} <= {*OPTIMIZERS, *SCHEDULES}


def scheduled(name, **args):
    return {"schedule": {"name": name, "args": args}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"args": {"lrr": 1}}, "optimizer Adam cannot be used with {lrr: 1}: TypeError: "),
        ({"args": {"lr": -1.0}}, "optimizer Adam cannot be used with {lr: -1.0}: ValueError: Invalid learning rate"),
        ({"args": {"lr": 1e300}}, "ValueError: parameters are not finite after a step"),
        ({"args": {"betas": [0.9]}}, "IndexError: "),
        ({"name": "RMSprop", "args": {"capturable": True}}, "RMSprop cannot be used with {capturable: true}: "),
        (scheduled("StepLR"), "schedule StepLR cannot be used with {}: TypeError: "),
        (scheduled("StepLR", step_size=0), "ZeroDivisionError: "),
        (scheduled("ExponentialLR", gamma=-0.5), "the learning rate becomes -0.0005"),
    ],
)
def test_invalid_arguments_are_one_line_errors(config, message):
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        check_optimizer(OptimizerConfig(**{"args": {"lr": 1e-3}, **config}), RunLength(10, None, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "config", [*({"name": name} for name in OPTIMIZERS), *(scheduled(name, **ARGUMENTS[name]) for name in SCHEDULES)]
)
def test_usable_optimizers_and_schedules_pass_the_check(config):
    check_optimizer(OptimizerConfig(args={"lr": 1e-3}, **config), RunLength(1000, None, 100))


LONGER = RunLength(1000, None, 100, updates_per_step=0.1)


def linear(length=LONGER, **args):
    schedule = ScheduleConfig(name="LinearLR", args={"start_factor": 1.0, "end_factor": 0.0, **args})
    return FlatOptimizer(
        OptimizerConfig(name="SGD", args={"lr": 1.0}, schedule=schedule),
        make_net().parameters(),
        length,
    )


def rates(optimizer, fractions):
    found = []
    for fraction in fractions:
        optimizer.apply(0.0)
        optimizer.end_update(Progress(fraction=fraction))
        found.append(optimizer.learning_rate)
    return found


def test_schedule_over_the_run_follows_env_steps_and_not_updates():
    """Resets are part of batches but no env steps, so a run may have more updates than planned."""
    fractions = [version / 110 for version in range(1, 111)]
    found = rates(linear(total_iters="run"), fractions)
    assert found == pytest.approx([1 - int(fraction * 100 + 1e-9) / 100 for fraction in fractions], abs=1e-6)
    assert min(found[:-1]) > 0


def test_schedule_over_a_number_of_updates_counts_updates():
    found = rates(linear(total_iters=4), [0.0] * 6)
    assert found == pytest.approx([0.75, 0.5, 0.25, 0.0, 0.0, 0.0], abs=1e-6)


def test_schedule_over_env_steps_follows_them():
    optimizer = linear(total_iters="500 env steps")  # 50 updates are planned in them
    found = []
    for env_steps in (0, 10, 19, 250, 500, 700):
        optimizer.apply(0.0)
        optimizer.end_update(Progress(env_steps))
        found.append(optimizer.learning_rate)
    assert found == pytest.approx([1.0, 0.98, 0.98, 0.5, 0.0, 0.0], abs=1e-6)


def test_schedule_over_a_run_of_updates_counts_updates():
    optimizer = linear(RunLength(updates=4, planned_updates=4, updates_per_step=0.1), total_iters="run")
    assert rates(optimizer, [0.0] * 5) == pytest.approx([0.75, 0.5, 0.25, 0.0, 0.0], abs=1e-6)
    schedule = ScheduleConfig(name="OneCycleLR", args={"max_lr": 1.0, "total_steps": "run"})
    assert schedule_clock(schedule, RunLength(updates=4, planned_updates=4))[1]["total_steps"] == 4


def test_milestones_in_env_steps_become_planned_updates():
    schedule = ScheduleConfig(name="MultiStepLR", args={"milestones": ["100 env steps", "300 env steps"], "gamma": 0.5})
    position, args = schedule_clock(schedule, RUN)
    assert args == {"milestones": [10, 30], "gamma": 0.5}
    assert [position(Progress(steps)) for steps in (0, 99, 100, 301)] == [0, 9, 10, 30]


def test_lengths_in_env_steps_beside_a_run_of_updates_are_an_error():
    args = {"max_lr": 1.0, "total_steps": "run", "epochs": "9 env steps"}
    with pytest.raises(UserError, match="the run is counted in updates"):
        schedule_clock(ScheduleConfig(name="OneCycleLR", args=args), RunLength(updates=4, planned_updates=4))
