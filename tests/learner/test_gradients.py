"""Gradients, eager and compiled, are the same, and each optimizer gets those of its own parameters."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from starling.algos.base import Loss
from starling.config.load import load
from starling.errors import UserError
from starling.hardware import check_compiler, compiles
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.learner.gradients import Compiled, differentiate

CAN_COMPILE = compiles(load("sac-pendulum", ["compile=auto"]))
needs_compiler = pytest.mark.skipif(not CAN_COMPILE, reason="torch needs a C++ compiler and Python's headers")


def two_losses(a, b, x):
    """A product of both parameters, as a loss for each of them."""
    y = (a * b * x).sum()
    return Loss({"first": y, "second": -2.0 * y}, lambda: {"y": y}, priorities=a.detach().abs() * x)


@pytest.fixture
def parameters():
    a, b, unused = (nn.Parameter(torch.tensor(values)) for values in ([1.0, 2.0], [3.0, 5.0], [7.0]))
    return {"first": [a, unused], "second": [b]}


def test_every_loss_is_differentiated_only_for_its_own_optimizer(parameters):
    (a, _), (b,) = parameters.values()
    x = torch.tensor([1.0, 10.0])
    loss, gradients = differentiate(partial(two_losses, a, b, x), parameters, nullcontext)
    assert loss.losses["first"].item() == loss.metrics()["y"].item() == 103.0
    assert gradients.keys() == {"first", "second"}
    assert gradients["first"][0].tolist() == [3.0, 50.0]
    assert gradients["first"][1] is None, "the loss does not depend on it"
    assert gradients["second"][0].tolist() == [-2.0, -40.0]
    assert a.grad is None
    assert b.grad is None


@needs_compiler
@pytest.mark.parametrize("factor", [None, 4.0])
def test_compiled_gradients_equal_eager_ones_on_every_call(factor, parameters):
    """With a loss scale also in the mode that records CUDA graphs on a GPU; on a CPU there are none."""
    (a, _), (b,) = parameters.values()
    compiled = Compiled(graphs=factor is not None)
    factor = None if factor is None else torch.tensor(factor)
    for scale in (1.0, 2.0):
        part = partial(two_losses, a, b, torch.tensor([1.0, 10.0]) * scale)
        loss, gradients = differentiate(part, parameters, nullcontext, factor)
        same, found = compiled(part, parameters, nullcontext, factor)
        assert compiled.pays
        assert found["first"][1] is None
        torch.testing.assert_close(found, gradients)
        torch.testing.assert_close(same.losses, {name: value.detach() for name, value in loss.losses.items()})
        torch.testing.assert_close(same.priorities, loss.priorities)
        assert not any(value.requires_grad for value in (*same.losses.values(), *same.metrics().values()))
        assert float(same.metrics()["y"]) == 103.0 * scale


SETTINGS = {  # two parts with three optimizers; a setting that changes with time
    "sac-pendulum": ["algo.learning_starts=100", "algo.batch=64", "algo.prioritized.alpha=0.6"],
    "ppo-cartpole": ["algo.rollout=32", "algo.clip={start: 0.2, end: 0.0, fraction: 0.1}"],
}


def train(preset, *settings):
    runtime = build_runtime(RunPlan.from_config(load(preset, [*SETTINGS[preset], "eval.every=null", *settings])))
    for _ in runtime.run():
        if runtime.updates >= 3:
            return runtime
    raise AssertionError("unreachable")


@needs_compiler
@pytest.mark.parametrize("preset", [pytest.param("sac-pendulum", marks=pytest.mark.slow), "ppo-cartpole"])
def test_compiled_learner_gives_the_same_weights(preset):
    plain, compiled = train(preset), train(preset, "compile=true")
    metrics = [runtime.learner.drain_metrics() for runtime in (plain, compiled)]
    assert metrics[1].pop("learner/compiled") == 1.0, "else it learned as the other did"
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-5)
    for mine, other in zip(plain.learner.model.parameters(), compiled.learner.model.parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=1e-3, atol=1e-5)


@needs_compiler
@pytest.mark.slow
def test_other_memory_layout_does_not_recompile():
    runtime = train("sac-pendulum", "compile=true")
    sample = runtime.store.mixture.sample(64)
    wider = np.concatenate([sample.trajectory.obs] * 3, axis=1)
    non_contiguous = replace(sample, trajectory=replace(sample.trajectory, obs=wider[:, :64]))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert runtime.learner.step(non_contiguous, 500) is not None
    assert runtime.learner.drain_metrics()["learner/compiled"] == 1.0


@needs_compiler
def test_loss_with_a_graph_break_runs_eagerly(parameters):
    (a, _), (b,) = parameters.values()

    def part():
        if (a * b).sum() > 0:  # data-dependent control flow
            return two_losses(a, b, torch.ones(2))
        raise ValueError("the loss's own mistake")

    compiled = Compiled()
    for _ in range(2):
        loss, gradients = compiled(part, parameters, nullcontext)
        assert not compiled.pays
        assert loss.losses["first"].item() == 13.0
        assert gradients["first"][0].tolist() == [3.0, 5.0]
    with torch.no_grad():
        a.neg_()
    with pytest.raises(ValueError, match="the loss's own mistake"):
        compiled(part, parameters, nullcontext)


@needs_compiler
def test_loss_that_caches_values_in_its_first_call_is_compiled(parameters):
    """`tree` caches facts about classes in this way; reading a file stands for code that torch cannot compile."""
    (a, _), (b,) = parameters.values()
    cache = {}

    def part():
        if "scale" not in cache:
            with open(__file__) as file:
                cache["scale"] = float(len(file.readline()) > 0)
        return two_losses(a, b, torch.ones(2) * cache["scale"])

    compiled = Compiled()
    loss, _ = compiled(part, parameters, nullcontext)
    assert loss.losses["first"].item() == 13.0
    assert compiled.pays


def test_without_a_cpp_compiler_auto_is_eager_and_true_is_rejected(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not compiles(load("sac-pendulum", ["compile=auto"]))
    check_compiler(load("sac-pendulum", ["compile=auto"]))
    with pytest.raises(UserError, match=r"compile=true needs a C\+\+ compiler \(no-such-compiler.*use compile=false"):
        check_compiler(load("sac-pendulum", ["compile=true"]))


def test_compiling_needs_the_python_headers(monkeypatch):
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr("starling.hardware.sysconfig.get_path", lambda name: "/no/such/folder")
    with pytest.raises(UserError, match=r"needs Python's headers \(/no/such/folder/Python.h\)"):
        check_compiler(load("sac-pendulum", ["compile=true"]))


@needs_compiler
@pytest.mark.slow
def test_failing_cpp_compiler_is_a_one_line_error(tmp_path):
    settings = ["compile=true", "algo.learning_starts=100", "stop.env_steps=300", "run=broken"]
    command = [sys.executable, "-m", "starling", "train", "sac-pendulum", *settings, "--runs", str(tmp_path)]
    environment = {**os.environ, "CXX": "false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torch cannot compile the loss here" in done.stderr
    assert "use compile=false" in done.stderr
    assert "Traceback" not in done.stderr
