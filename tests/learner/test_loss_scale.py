"""The loss scale of float16: torch's own rule, and gradients that would otherwise be rounded to 0 or infinity."""

import copy

import pytest
import torch
from support.agents import AGENTS, SMALL

from starling.algos.base import Loss
from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner import loss_scale
from starling.learner.gradients import differentiate
from starling.learner.loss_scale import LARGEST, START, LossScale

CPU = torch.device("cpu")


def test_scale_follows_the_rule_of_torch(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWS_AFTER", 3)
    mine = LossScale(CPU)
    theirs = torch.amp.GradScaler("cpu", init_scale=START, growth_interval=3)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    steps = [True, False, *[True] * 3, True, False, False, *[True] * 7, False]
    scales = []
    for finite in steps:
        theirs.scale(parameter.sum())
        parameter.grad = torch.full((1,), 1.0 if finite else float("inf"))
        theirs.step(optimizer)
        theirs.update()
        mine.update(torch.tensor(finite))
        scales.append(float(mine.factor))
        assert scales[-1] == theirs.get_scale()
    assert len(set(scales)) == 3


def test_scale_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWS_AFTER", 1)
    scale = LossScale(CPU)
    for _ in range(40):
        scale.update(torch.tensor(True))
    assert float(scale.factor) == LARGEST


def test_gradients_that_float16_rounds_to_zero_survive():
    weight = torch.nn.Parameter(torch.ones(1, 1))
    x = torch.full((1, 1), 1e-5)

    def part():
        return Loss({"a": ((x @ weight).float() * 1e-4).sum()})

    def precision():
        return torch.autocast("cpu", dtype=torch.float16)

    _, plain = differentiate(part, {"a": [weight]}, precision)
    scale = LossScale(CPU).factor
    _, scaled = differentiate(part, {"a": [weight]}, precision, scale)
    assert float(plain["a"][0]) == 0
    assert float(scaled["a"][0] / scale) == pytest.approx(1e-9, rel=0.01)


def run_of(precision, updates):
    preset, settings = AGENTS["ppo"]
    fixed = ["device=cpu", "runtime=inline", f"precision={precision}", "algo.epochs=1"]
    runtime = build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *fixed])))
    for _ in runtime.run():
        if runtime.updates >= updates:
            return runtime.learner
    raise AssertionError


def test_learner_in_float16_makes_about_the_same_updates():
    exact, lower = run_of("float32", 2), run_of("float16", 2)
    metrics = lower.drain_metrics()
    assert metrics["learner/loss_scale"] == START
    assert metrics["learner/skipped"] == 0
    assert "learner/loss_scale" not in exact.drain_metrics()
    weights = lower.model.state_dict()
    assert any(not torch.equal(value, weights[name]) for name, value in exact.model.state_dict().items())
    for name, value in exact.model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0.1, atol=0.03, msg=name)


def test_step_that_overflows_is_skipped_and_halves_the_scale_which_is_saved():
    learner = run_of("float16", 1)
    before = copy.deepcopy(learner.model.state_dict())
    learner._scale.factor.fill_(1e38)
    for optimizer in learner._optimizers.values():
        optimizer.gradient.fill_(float("inf"))
    norms = {name: learner._all_reduce_gradient(name) for name in learner._optimizers}
    learner._apply_gradients(norms, None)
    assert learner.total_skipped == 1
    assert float(learner._scale.factor) == pytest.approx(0.5e38)
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())
    other = run_of("float16", 1)
    other.set_state(copy.deepcopy(learner.get_state()))
    assert float(other._scale.factor) == pytest.approx(0.5e38)
    run_of("float32", 1).set_state(learner.get_state())
    other.set_state(run_of("float32", 1).get_state())
