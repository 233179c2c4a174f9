"""The epsilon in the metrics is the one used for acting, for every Q-learner and in every runtime."""

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
BANDIT = "algo.epsilon_bandit={arms: 3, ladder: 1}"
LEARNERS = {
    "dqn": ["dqn-cartpole", "env.num=4"],
    "dqn with curiosity": ["dqn-rnd-deepsea", "env.num=4"],
    "apex": ["dqn-cartpole", "env.num=4", "algo.name=apex", "algo.ladder=3"],
    "r2d2": ["r2d2-cartpole", "env.num=4"],
    "ngu": ["ngu-deepsea", "env.num=4"],
    "dqn bandit": ["dqn-cartpole", "env.num=4", BANDIT],
    "apex bandit": ["dqn-cartpole", "env.num=4", "algo.name=apex", BANDIT],
    "r2d2 bandit with curiosity": ["r2d2-rnd-deepsea", "env.num=4", BANDIT],
}


def plan_of(preset, *settings):
    return RunPlan.from_config(load(preset, [*settings, SCHEDULE]))


def acting_epsilons(algorithm, env_index, arms, progress):
    """The epsilons [B] with which these envs act."""
    no_flags = torch.zeros(len(env_index), dtype=torch.bool)
    inputs = ActInput(
        None,
        no_flags,
        {"arm": arms},
        env_index,
        len(env_index),
        progress,
        True,
        lambda n: torch.zeros(len(env_index), n),
    )
    agent = getattr(algorithm, "_agent", algorithm)  # Curious delegates acting to the algorithm that it wraps
    epsilon = agent.epsilon(inputs)
    assert agent.epsilon(replace(inputs, explore=False)) == agent.config.eval_epsilon
    return torch.as_tensor(epsilon).expand(len(env_index))


@pytest.mark.parametrize("name", LEARNERS)
def test_reported_epsilon_is_the_one_used_for_acting(name):
    plan, env_index = plan_of(*LEARNERS[name]), torch.arange(4)
    if "bandit" in name:
        env_index = torch.arange(3)  # each arm once
    epsilons = acting_epsilons(plan.algorithm, env_index, env_index % 3, Progress(500, 7, 0.5))
    metrics = plan.exploration_metrics(500, 7)
    assert metrics["explore/epsilon"] == pytest.approx(epsilons.mean().item(), rel=1e-6)
    if name in ("dqn", "dqn with curiosity"):
        assert metrics == {"explore/epsilon": pytest.approx(0.5)}
    else:
        assert epsilons.min() < epsilons.max()
        assert metrics["explore/epsilon_min"] == pytest.approx(epsilons.min().item(), rel=1e-6)
        assert metrics["explore/epsilon_max"] == pytest.approx(epsilons.max().item(), rel=1e-6)


def test_each_arm_of_a_bandit_counts_once_in_the_mean_epsilon():
    metrics = plan_of("dqn-cartpole", BANDIT).exploration_metrics(2000, 0)
    assert metrics["explore/epsilon_max"] == pytest.approx(0.2)
    assert metrics["explore/epsilon_min"] == pytest.approx(0.2**2)
    assert metrics["explore/epsilon"] == pytest.approx((0.2 + 0.2**1.5 + 0.2**2) / 3)


def test_algorithm_without_epsilon_reports_none():
    assert RunPlan.from_config(load("sac-pendulum", [])).exploration_metrics(500, 7) == {}


@pytest.mark.parametrize("runtime", [["runtime=inline"], ["runtime=processes", "learners=2"]])
def test_epsilon_is_in_every_metrics_row(tmp_path, runtime):
    settings = ["env={id: toy/identity, num: 2}", SCHEDULE, "stop={env_steps: 800}", "log.every=200", *runtime]
    run = starling.train("dqn-cartpole", [*settings, "algo.learning_starts=50", "algo.fragment=4"], runs=tmp_path)
    rows = read_rows(RunFolder(run.folder).metrics_file)
    assert len(rows) >= 2  # with processes, a busy machine may skip some
    for row in rows:
        assert row["explore/epsilon"] == pytest.approx(max(0.2, 0.8 - 0.6 * row["env_steps"] / 1000))
