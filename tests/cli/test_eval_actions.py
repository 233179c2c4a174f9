"""`starling eval` chooses actions by the requested protocol, and reports which one."""

import json
import subprocess
import sys

import pytest

import starling
from starling.cli.main import app
from starling.errors import UserError

SMALL = ["env.id=toy/identity", "env.num=4", "stop.return=null", "net.torso.hidden=[16]"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A policy gradient agent and a Q-learner, both hardly trained."""
    root = tmp_path_factory.mktemp("runs")
    ppo = starling.train("ppo-cartpole", [*SMALL, "algo.rollout=16", "stop.env_steps=64", "run=ppo"], runs=root)
    q_learning = ["algo.learning_starts=32", "algo.eval_epsilon=0.02", "stop.env_steps=64", "run=dqn"]
    dqn = starling.train("dqn-cartpole", [*SMALL, *q_learning], runs=root)
    return {"ppo": ppo.folder, "dqn": dqn.folder}


def evaluated(capsys, run, *options):
    assert app(["eval", str(run), "--episodes", "6", "--json", *options], standalone_mode=False) in (None, 0)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_most_likely_actions_are_reproducible(runs, capsys):
    first, again = (evaluated(capsys, runs["ppo"]) for _ in range(2))
    assert first == again
    assert first["actions"] == "likeliest"


def test_sampled_actions_differ_from_the_most_likely(runs, capsys):
    most_likely, sampled = evaluated(capsys, runs["ppo"]), evaluated(capsys, runs["ppo"], "--sample")
    assert sampled["actions"] == "sampled"
    assert sampled["mean"] != most_likely["mean"]


def test_epsilon_1_acts_randomly(runs, capsys):
    greedy, random = (evaluated(capsys, runs["dqn"], "--epsilon", str(epsilon)) for epsilon in (0, 1))
    assert (greedy["actions"], random["actions"]) == ("epsilon 0", "epsilon 1")
    assert greedy["mean"] != random["mean"]
    assert evaluated(capsys, runs["dqn"])["actions"] == "epsilon 0.02"


@pytest.mark.parametrize(
    ("agent", "option", "advice"),
    [("dqn", ["--sample"], "give --epsilon"), ("ppo", ["--epsilon", "0.1"], "--sample takes")],
)
def test_protocol_that_an_algorithm_does_not_support_is_rejected(runs, agent, option, advice):
    with pytest.raises(UserError, match=advice):
        app(["eval", str(runs[agent]), *option], standalone_mode=False)


def test_epsilon_above_1_is_a_one_line_error(runs):
    command = [sys.executable, "-m", "starling", "eval", str(runs["dqn"]), "--epsilon", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
