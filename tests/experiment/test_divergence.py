"""Diverging training stops, keeps its sound checkpoints, and reports what happened."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import starling
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder

SMALL = [
    *["env.id=toy/identity", "env.num=4", "algo.rollout=16", "algo.epochs=2", "algo.minibatches=2", "stop.return=null"],
    *["stop.env_steps=6000", "checkpoint.every=200", "checkpoint.keep=2"],
]


class Poisoned(torch.nn.Module):
    """A torso whose gradients, weights, or statistics become non-finite after some forward passes with gradients."""

    def __init__(self, space, what, after=100):
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(space.shape)) or 1, 8)
        self.register_buffer("statistic", torch.zeros(1))
        self.size, self.what, self.left = 8, what, after

    def forward(self, obs):
        self.left -= torch.is_grad_enabled()
        if self.left < 0 and torch.is_grad_enabled():
            self.poison()
        x = self.layer(obs.float().reshape(len(obs), -1))
        return x * float("nan") if self.left < 0 and self.what == "gradient" else x

    def poison(self):
        if self.what in ("nan", "inf"):
            self.layer.weight.data.fill_(float(self.what))
        if self.what == "statistic":
            self.statistic.fill_(float("nan"))


class Recorder:
    def __init__(self):
        self.lines = []
        self.message = self.lines.append

    def tick(self, status): ...

    def row(self, row): ...


@pytest.fixture
def diverge(tmp_path):
    """`diverge(what)`: the result of a run, its folder, and the messages."""
    starling.register_torso("poisoned", Poisoned)

    def train(what):
        display, torso = Recorder(), f"net.torso={{kind: poisoned, args: {{what: {what}}}}}"
        result = starling.train("ppo-cartpole", [*SMALL, torso], runs=tmp_path, display=display)
        return result, RunFolder(result.folder), display.lines

    return train


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("gradient", "gradients were not finite 20 times in a row"),
        ("nan", "weights are not finite"),
        ("inf", "weights are not finite"),
        ("statistic", "statistic is NaN"),
    ],
)
def test_diverged_run_exits_with_1_and_keeps_sound_checkpoints(diverge, what, reason):
    result, run, lines = diverge(what)
    assert result.exit_code == 1
    assert reason in result.reason
    folders = sorted(run.checkpoints.glob("step-*"))
    assert folders
    for folder in folders:
        weights = checkpoint.load(folder, ("learner",))["learner"]["model"]
        assert all(np.isfinite(np.asarray(value)).all() for value in weights.values())
    (said,) = [line for line in lines if line.startswith("training diverged")]
    assert folders[-1].name in said
    assert str(run.path / "diverged") in said
    assert said in run.log_file.read_text()


def test_dump_has_the_batch_and_the_gradient_norms(diverge):
    result, run, _ = diverge("gradient")
    report = json.loads((run.path / "diverged" / "report.json").read_text())
    assert report["gradient_norms"] == {"ppo": "nan"}
    assert report["updates"] == result.updates
    batch = load_file(run.path / "diverged" / "batch.safetensors")
    assert batch["trajectory.obs"].shape[1] == len(batch["weight"])


def test_diverged_run_resumes_from_its_last_sound_checkpoint(diverge):
    _, run, _ = diverge("nan")
    newest, display = checkpoint.newest_sound(run.checkpoints), Recorder()
    again = starling.resume(run.path, display=display)
    assert f"resuming from {newest}" in display.lines
    assert again.env_steps > int(newest.name.removeprefix("step-"))
