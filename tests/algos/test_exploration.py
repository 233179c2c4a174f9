"""The epsilon that metrics report is the one that acting uses, for every Q-learner and in every runtime."""

from dataclasses import replace

import pytest
import torch

import starling
from starling.algos.base import ActInput
from starling.config.load import load
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.launch.plan import RunPlan
from starling.types import Progress

SCHEDULE = "algo.epsilon={start: 0.8, end: 0.2, steps: 1000}"
BY_ARM = ["ngu-deepsea", "algo.policies=3", "algo.arm_varies=epsilon", "env.num=4"]
LEARNERS = {
    "dqn": ["dqn-cartpole", "env.num=4"],
    "dqn with curiosity": ["dqn-rnd-deepsea", "env.num=4"],
    "apex": ["dqn-cartpole", "env.num=4", "algo.name=apex", "algo.ladder=3"],
    "r2d2": ["r2d2-cartpole", "env.num=4"],
    "ngu": ["ngu-deepsea", "env.num=4"],
    "ngu, policies differ in epsilon": [*BY_ARM, "algo.meta=null"],
}


def plan_of(preset, *settings):
    return RunPlan.from_config(load(preset, [*settings, SCHEDULE]))


def acted_with(algorithm, rows, arms, progress):
    """The epsilons [B] with which these env rows act."""
    nothing = torch.zeros(len(rows), dtype=torch.bool)
    inputs = ActInput(
        None, nothing, {"arm": arms}, rows, len(rows), progress, True, lambda n: torch.zeros(len(rows), n)
    )
    agent = getattr(algorithm, "_agent", algorithm)  # curiosity leaves acting to the algorithm that it wraps
    epsilon = agent.epsilon(inputs)
    assert agent.epsilon(replace(inputs, explore=False)) == agent.config.eval_epsilon
    return torch.as_tensor(epsilon).expand(len(rows))


@pytest.mark.parametrize("name", LEARNERS)
def test_the_epsilon_reported_is_the_one_acted_with(name):
    plan, rows = plan_of(*LEARNERS[name]), torch.arange(4)
    epsilons = acted_with(plan.algorithm, rows, rows % 3, Progress(500, 7, 0.5))
    found = plan.exploration(500, 7)
    assert found["explore/epsilon"] == pytest.approx(epsilons.mean().item(), rel=1e-6)
    if name.startswith("dqn"):
        assert found == {"explore/epsilon": pytest.approx(0.5)}
    else:
        assert epsilons.min() < epsilons.max()
        assert found["explore/epsilon_min"] == pytest.approx(epsilons.min().item(), rel=1e-6)
        assert found["explore/epsilon_max"] == pytest.approx(epsilons.max().item(), rel=1e-6)


def test_policies_that_a_bandit_chooses_are_counted_once_each():
    found = plan_of(*BY_ARM, "algo.meta={}", "algo.ladder=1").exploration(2000, 0)
    assert found["explore/epsilon_max"] == pytest.approx(0.2)
    assert found["explore/epsilon_min"] == pytest.approx(0.2**2)
    assert found["explore/epsilon"] == pytest.approx((0.2 + 0.2**1.5 + 0.2**2) / 3)


def test_an_algorithm_without_epsilon_reports_none():
    assert RunPlan.from_config(load("sac-pendulum", [])).exploration(500, 7) == {}


@pytest.mark.parametrize("runtime", [["runtime=inline"], ["runtime=processes", "learners=2"]])
def test_epsilon_is_in_every_row(tmp_path, runtime):
    settings = ["env={id: toy/identity, num: 2}", SCHEDULE, "stop={env_steps: 800}", "log.every=200", *runtime]
    run = starling.train("dqn-cartpole", [*settings, "algo.learning_starts=50", "algo.fragment=4"], runs=tmp_path)
    rows = read_rows(RunFolder(run.folder).metrics_file)
    assert len(rows) >= 4
    for row in rows:
        assert row["explore/epsilon"] == pytest.approx(max(0.2, 0.8 - 0.6 * row["env_steps"] / 1000))
