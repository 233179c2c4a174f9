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
    cartpole = starling.train("ppo-cartpole", ["algo.rollout=16", "stop.env_steps=128", "run=cartpole"], runs=root)
    return {"ppo": ppo.folder, "dqn": dqn.folder, "cartpole": cartpole.folder}


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


def test_every_episode_has_its_return_and_seeds_do_not_depend_on_each_other(runs, capsys):
    several = evaluated(capsys, runs["ppo"], "--seed", "3-5")
    single = [evaluated(capsys, runs["ppo"], "--seed", str(seed)) for seed in (3, 4, 5)]
    assert several["returns"] == [total for result in single for total in result["returns"]]
    assert several["lengths"] == [length for result in single for length in result["lengths"]]
    assert several["seeds"] == [3] * 6 + [4] * 6 + [5] * 6
    assert several["episodes"] == 18
    assert several["mean"] == pytest.approx(sum(several["returns"]) / 18)
    assert several["seed"] == 3
    assert app(["eval", str(runs["ppo"]), "--episodes", "2", "--seed", "3-4"], standalone_mode=False) in (None, 0)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("mean ")
    assert [line.split(":")[0] for line in told[1:]] == ["seed 3", "seed 4"]
    assert [float(word) for word in told[1].split()[2:]] == evaluated(
        capsys, runs["ppo"], "--seed", "3", "--episodes", "2"
    )["returns"]


@pytest.mark.parametrize("text", ["5-3", "-1", "a", "1-", "0-10000", "1.5"])
def test_what_is_no_seed_and_no_range_is_rejected(runs, text):
    with pytest.raises(UserError, match=f"--seed {text} is neither a seed"):
        app(["eval", str(runs["ppo"]), f"--seed={text}"], standalone_mode=False)


def test_video_is_recorded_while_it_scores(runs, capsys, read_mp4, tmp_path):
    video = tmp_path / "out.mp4"
    result = evaluated(capsys, runs["cartpole"], "--seed", "3-4", "--video", str(video))
    metadata, frames = read_mp4(video)
    assert metadata["fps"] == 50
    first = [length for i, length in enumerate(result["lengths"]) if i % 6 == 0]
    assert len(frames) == sum(first)  # one env per episode: the first env has one game per seed
    with pytest.raises(UserError, match=r"does not end in \.mp4 or \.gif"):
        app(["eval", str(runs["ppo"]), "--video", "out.avi"], standalone_mode=False)
    with pytest.raises(UserError, match="'toy/identity' cannot be rendered"):
        app(["eval", str(runs["ppo"]), "--video", str(tmp_path / "a.mp4")], standalone_mode=False)
    assert list(tmp_path.iterdir()) == [video]


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
