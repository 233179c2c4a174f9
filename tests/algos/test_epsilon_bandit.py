"""Bandits over epsilon for DQN, Ape-X, and R2D2, with and without curiosity."""

import shutil

import pytest
import torch
from support import inline_runs
from support.agents import EPISODIC, RND
from support.inline_runs import all_sequences

import starling
from starling import tree
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder.folder import RunFolder
from starling.launch.plan import RunPlan, build_model
from starling.ops.explore import ladder
from starling.tools.verify import compare

BANDIT = "algo.epsilon_bandit={arms: 4, ladder: 3, window: 1000, epsilon: 0.3}"
LATE = "algo.learning_starts=1500"
NOVELTY = (
    "{kind: novelty, weight: 0.05, lifelong: {kind: rnd, torso: {hidden: [8]}}, within: {kind: episodic,"
    " features: 4, capacity: 16, neighbours: 3, hidden: 8, torso: {hidden: [8]}}}"
)
SMALL = ["env={id: toy/counting, num: 3}", "net.torso.hidden=[8]", "stop.return=null", "algo.fragment=4", BANDIT]
R2D2 = ["algo.unroll=4", "algo.period=2", "algo.burn_in=2", "algo.batch=8", "net.core.size=4"]
AGENTS = {
    "dqn": ["dqn-cartpole", *SMALL],
    "apex": ["dqn-cartpole", *SMALL, "algo.name=apex"],
    "r2d2": ["r2d2-memory", *SMALL, *R2D2, "env.args={}"],
    "dqn with curiosity": ["dqn-cartpole", *SMALL, f"curiosity=[{RND}, {EPISODIC}]"],
    "r2d2 with novelty": ["r2d2-memory", *SMALL, *R2D2, "env.args={}", f"curiosity=[{NOVELTY}]"],
}


@pytest.mark.parametrize("agent", AGENTS)
def test_probabilities_of_actions_are_those_of_the_chosen_epsilon(agent):
    """With four actions epsilon / 4, or 1 - 3 / 4 epsilon; epsilon_i = 0.4^(1 + i) for the arm i of the episode."""
    preset, *settings = AGENTS[agent]
    runtime = inline_runs.run(preset, 400, *settings, LATE, "algo.epsilon=0.4", "algo.retrace=0.9")
    steps = tree.to_torch(all_sequences(runtime))
    arm = steps.carry["arm"]
    assert len(arm.unique()) > 2
    epsilon = ladder(arm, 4, 0.4, 3.0).expand_as(steps.valid)[steps.valid]
    mu = steps.extras["mu"][:-1][steps.valid]
    assert (((mu - epsilon / 4).abs() < 1e-5) | ((mu - (1 - 0.75 * epsilon)).abs() < 1e-5)).all()
    runtime.close()


@pytest.mark.parametrize("agent", AGENTS)
def test_bandits_learn_from_the_returns_of_whole_episodes(agent):
    preset, *settings = AGENTS[agent]
    runtime = inline_runs.build(preset, *settings, LATE)
    steps, totals = runtime.run(), {row: [] for row in range(3)}
    for _ in range(120):
        next(steps)
        for episode in runtime.episodes():
            totals[episode.env_index].append(episode.total)
    for core in runtime._cores:
        for group in core._groups.values():
            bandit = group.intrinsic_state["bandit"]
            for row, returns, played in zip(group.env_index.tolist(), bandit["value"], bandit["played"], strict=True):
                assert played > 5
                assert returns[:played].tolist() == pytest.approx(totals[row][:played])
    runtime.close()


def test_bandit_adds_no_network_and_no_optimizer():
    plans = [RunPlan.from_config(load("dqn-cartpole", [*SMALL, *more])) for more in ([], ["algo.epsilon_bandit=null"])]
    shapes = [{name: p.shape for name, p in build_model(plan).named_parameters()} for plan in plans]
    assert shapes[0] == shapes[1]
    assert [list(plan.algorithm.learning().optimizers) for plan in plans] == [["q"], ["q"]]
    assert [plan.algorithm.recorded_rewards() for plan in plans] == [(), ()]


@pytest.mark.parametrize("agent", ["dqn", "r2d2 with novelty"])
def test_run_with_bandits_resumes_to_the_bit(agent, tmp_path):
    preset, *settings = AGENTS[agent]
    more = ["algo.learning_starts=100", "stop.env_steps=1200", "log.every=200", "checkpoint.every=400"]
    more += ["checkpoint.exact=true", "checkpoint.keep=9", "run=whole"]
    whole = starling.train(preset, [*settings, *more], runs=tmp_path).folder
    cut = shutil.copytree(whole, tmp_path / "cut")
    for folder in sorted(RunFolder(cut).checkpoints.glob("step-*"))[1:]:
        shutil.rmtree(folder)
    assert starling.resume(cut).env_steps >= 1200
    assert compare(RunFolder(whole), RunFolder(cut)) == []


@pytest.mark.slow
def test_bandits_and_novelty_work_over_processes(tmp_path):
    preset, *settings = AGENTS["r2d2 with novelty"]
    more = ["algo.learning_starts=100", "stop.env_steps=1200", "runtime=processes", "actors=2", "inference=central"]
    result = starling.train(preset, [*settings, *more], runs=tmp_path)
    assert result.updates > 0


def test_impossible_settings_are_one_clear_line():
    with pytest.raises(UserError, match=r"^algo\.epsilon_bandit: window=3 is less than arms=4: raise it$"):
        load("dqn-cartpole", ["algo.epsilon_bandit={arms: 4, window: 3}"])


def test_evaluation_has_its_own_epsilon():
    plan = RunPlan.from_config(load("dqn-cartpole", [*SMALL, "algo.eval_epsilon=0.07"]))
    assert plan.algorithm.trials() is None
    inputs = type("Inputs", (), {"explore": False, "carry": {"arm": torch.zeros(2)}})
    assert plan.algorithm.epsilon(inputs) == 0.07
