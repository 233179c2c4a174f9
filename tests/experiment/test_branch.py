"""Branches with another optimizer, and rejected ones with another algorithm."""

import pytest

import starling
from starling.api import Quiet
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch

SETTINGS = [
    "net.torso.hidden=[16]",
    "stop.return=null",
    "env.num=2",
    "algo.learning_starts=100",
    "algo.fragment=16",
    "stop.env_steps=400",
    "log.every=100",
    "algo.optimizer={name: Adam, args: {lr: 0.001}}",
]
ANEW = "the saved moments do not fit and are reset: optimizer q"


class Recorder(Quiet):
    def __init__(self):
        self.lines = []

    def message(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    return RunFolder(starling.train("dqn-cartpole", [*SETTINGS, "run=parent"], runs=runs).folder)


def branched(parent, runs, *overrides):
    """The messages of a branch, its own rows, and its final optimizer state."""
    recorder, before = Recorder(), len(read_rows(parent.metrics_file))
    config = load(str(parent.config_file), ["stop.env_steps=600", "run=child", *overrides])
    run = RunFolder(branch(parent.path, config, runs, recorder).folder)
    state = checkpoint.find(run.checkpoints)[1]["learner"]["optimizers"]["q"]
    return recorder.lines, read_rows(run.metrics_file)[before:], state


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ("{name: SGD, args: {lr: 0.01, momentum: 0.9}}", {"momentum_buffer"}),
        ("{name: RMSprop, args: {lr: 0.002}}", {"step", "square_avg"}),
        ("{name: Adam, args: {lr: 0.003, amsgrad: true}}", {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    ],
)
def test_other_optimizer_starts_without_moments_with_a_message(parent, tmp_path, optimizer, moments):
    lines, rows, state = branched(parent, tmp_path, f"algo.optimizer={optimizer}")
    assert lines.count(ANEW) == 1
    assert state["moments"]["0"].keys() == moments
    assert rows[-1]["updates"] > rows[0]["updates"]
    assert f"lr: {rows[-1]['learner/q/learning_rate']}" in optimizer


def test_same_optimizer_with_another_learning_rate_keeps_its_moments(parent, tmp_path):
    saved = checkpoint.find(parent.checkpoints)[1]["learner"]
    lines, _, state = branched(parent, tmp_path, "algo.optimizer.args.lr=0.002")
    assert not [line for line in lines if "anew" in line]
    parent_steps = saved["optimizers"]["q"]["moments"]["0"]["step"]
    assert 0 < parent_steps < state["moments"]["0"]["step"]


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_new_schedule_starts_at_the_progress_of_the_run(parent, tmp_path, name):
    linear = "schedule: {name: LinearLR, args: {start_factor: 1.0, end_factor: 0.0, total_iters: run}}"
    optimizer = f"algo.optimizer={{name: {name}, args: {{lr: 0.001}}, {linear}}}"
    lines, rows, _ = branched(parent, tmp_path, optimizer)
    for row in rows:
        assert row["learner/q/learning_rate"] == pytest.approx(0.001 * (1 - row["env_steps"] / 600), abs=1e-4)
    assert (ANEW in lines) == (name == "SGD")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algo.name=ppo"], "algo.name=ppo"),
        (["seed=3", "algo.rollout=8", "algo.name=impala"], "algo.name=impala"),
        (["algo={name: sac}"], "algo={name: sac}"),
        (["algo=ppo"], "algo=ppo"),
    ],
)
def test_other_algorithm_is_a_one_line_error_that_names_the_override(parent, overrides, named):
    with pytest.raises(UserError) as refused:
        parent.check_algorithm(overrides)
    assert str(refused.value) == (
        f"a branch cannot change the algorithm: {named}, and {parent.path} has algo.name=dqn;"
        " start a new run with starling train instead"
    )


def test_settings_of_the_same_algorithm_are_accepted(parent):
    parent.check_algorithm(["algo.name=dqn", "seed=5", "algo.batch=8"])
