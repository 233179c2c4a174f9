"""A checkpoint continues on another device: it has seeds and counters, and no state of a device's generator."""

import numpy as np
import pytest
from support.agents import AGENTS, SMALL

import starling
from starling.config.load import load
from starling.experiment.branch import check_branch
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch
from starling.launch.plan import RunPlan

STEPS = 520  # after which each of the agents has learned twice
FIXED = ["runtime=inline", "compile=false", "precision=float32"]


@pytest.mark.parametrize("agent", ["ppo", "ppo curious", "r2d2", "sac"])
def test_a_checkpoint_of_a_cpu_continues_on_the_device_and_back(agent, mock_device, tmp_path):
    preset, settings = AGENTS[agent]
    runs = [starling.train(preset, [*SMALL, *settings, *FIXED, f"stop.env_steps={STEPS}", "run=a0"], runs=tmp_path)]
    for number, device in enumerate(("mock", "cpu"), start=1):
        changes = [f"device={device}", f"stop.env_steps={STEPS * (number + 1)}", f"run=a{number}"]
        config = load(str(runs[-1].folder / "config.yaml"), changes)
        runs.append(branch(runs[-1].folder, config, tmp_path, starling.api.Quiet()))
    assert [run.updates for run in runs] == sorted({run.updates for run in runs})
    steps = [row["env_steps"] for row in read_rows(runs[-1].folder / "metrics.jsonl")]
    assert np.all(np.diff(steps) >= 0)
    assert steps[-1] >= 3 * STEPS


@pytest.mark.parametrize("agent", ["sac", "ppo curious"])
def test_a_run_on_the_device_resumes_to_the_bit(agent, mock_device, resume_differences):
    preset, settings = AGENTS[agent]
    assert resume_differences(preset, [*SMALL, *settings, *FIXED, "device=mock"], 400) == []


def test_a_branch_on_another_device_changes_nothing_else():
    run_plans = [RunPlan.from_config(load("sac-pendulum", [f"device={device}"])) for device in ("cpu", "auto")]
    assert not any("optimizer" in line for line in check_branch(*run_plans).lines())
