"""Whole runs: evaluation, branching, and which files remain."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import starling
from starling.cli.show import closing_lines
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch

TINY = ["net.torso.hidden=[16]", "stop.return=null", "env.num=2"]
DQN = [
    *TINY,
    "algo.learning_starts=100",
    "algo.fragment=16",
    "stop.env_steps=800",
    "checkpoint.every=200",
    "log.every=200",
    "algo.n_step=1",
    "algo.optimizer.schedule=null",
]


class Recorder:
    """A display that records what it gets."""

    def __init__(self):
        self.lines = []

    def tick(self, status):
        assert status.env_steps > 0

    def row(self, row):
        self.lines.append(row["env_steps"])

    def message(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return starling.train(
        "dqn-cartpole", [*DQN, "checkpoint.exact=true", "run=parent"], runs=tmp_path_factory.mktemp("runs")
    ).folder


def child_config(parent, *overrides):
    return load(str(RunFolder(parent).config_file), ["run=child", *overrides])


def test_branch_continues_with_other_settings_and_does_not_change_its_parent(parent, tmp_path):
    before = sorted(path.name for path in parent.rglob("*"))
    recorder = Recorder()
    config = child_config(parent, "stop.env_steps=1200", "algo.optimizer.args.lr=0.0001", "algo.batch=32")
    result = branch(parent, config, tmp_path, recorder)
    assert result.env_steps >= 1200
    assert "changed: algo.optimizer.args.lr: 0.001 -> 0.0001" in recorder.lines
    rows = read_rows(result.folder / "metrics.jsonl")
    assert rows[0] == read_rows(parent / "metrics.jsonl")[0]
    assert [row["env_steps"] for row in rows] == sorted({row["env_steps"] for row in rows})
    log = (result.folder / "log.txt").read_text()
    assert f"a branch of {parent}" in log
    assert "finished: stop.env_steps=1,200 reached" in log
    assert rows[0]["learner/q/learning_rate"] == 0.001
    assert rows[-1]["learner/q/learning_rate"] == 0.0001
    assert json.loads((result.folder / "branch.json").read_text())["changes"]["stop.env_steps"] == [800, 1200]
    assert sorted(path.name for path in parent.rglob("*")) == before


def test_branch_with_another_table_starts_with_an_empty_one_and_a_message(parent, tmp_path):
    recorder = Recorder()
    result = branch(parent, child_config(parent, "stop.env_steps=1200", "algo.n_step=3"), tmp_path, recorder)
    assert any("filled again" in str(line) for line in recorder.lines)
    assert read_rows(result.folder / "metrics.jsonl")[-1]["store/replay/size"] < 600


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.id=Acrobot-v1", "cannot change env.id"),
        ("net.torso.hidden=[8]", "cannot change net.torso.hidden"),
        ("algo.fragment=8", "cannot change how many steps"),
        ("algo.dueling=true", "are those of another env or network"),
    ],
)
def test_branch_cannot_change_env_network_or_fragments(parent, tmp_path, override, message):
    with pytest.raises(UserError, match=message):
        branch(parent, child_config(parent, override), tmp_path, Recorder())
    assert list(tmp_path.iterdir()) == []


def test_branch_with_more_steps_stretches_schedules_over_the_run(tmp_path):
    settings = [*TINY, "stop.env_steps=600", "run=p", "algo.optimizer.args.lr=0.001"]
    parent = starling.train("ppo-cartpole", settings, runs=tmp_path).folder
    assert read_rows(parent / "metrics.jsonl")[-1]["learner/ppo/learning_rate"] < 2e-4
    child = branch(parent, child_config(parent, "stop.env_steps=1200"), tmp_path, Recorder()).folder
    rates = [row["learner/ppo/learning_rate"] for row in read_rows(child / "metrics.jsonl") if row["env_steps"] > 660]
    assert 3e-4 < rates[0] < 6e-4
    assert rates[-1] < 2e-4


def test_evaluations_with_user_metrics_are_in_the_rows_and_select_the_best(tmp_path):
    settings = [*TINY, "env.id=toy/counting", "stop.env_steps=600", "checkpoint.every=100", "checkpoint.keep=1"]
    evaluation = "eval={every: 200, episodes: 3, metrics: [episode, missing]}"
    run = RunFolder(starling.train("ppo-cartpole", [*settings, evaluation, "run=e"], runs=tmp_path).folder)
    rows = [row for row in read_rows(run.metrics_file) if "eval/return" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["eval/return"] > 0
        assert row["eval/episode"] == 0  # each of three envs plays its first episode
        assert "eval/missing" not in row
    name, score = checkpoint.best(run.checkpoints)
    assert score == max(row["eval/return"] for row in rows)
    assert len(list(run.checkpoints.glob("step-*"))) <= 2
    assert (run.checkpoints / name).is_dir()


def test_evaluation_does_not_affect_training(tmp_path):
    settings = [*TINY, "stop.env_steps=600", "log.every=100"]
    plain = starling.train("ppo-cartpole", [*settings, "run=a"], runs=tmp_path).folder
    with_evaluation = starling.train(
        "ppo-cartpole", [*settings, "run=b", "eval.every=100", "eval.episodes=2"], runs=tmp_path
    )
    last = [read_rows(folder / "metrics.jsonl")[-1] for folder in (plain, with_evaluation.folder)]
    assert last[0]["loss/value"] == last[1]["loss/value"]
    assert last[0]["return"] == last[1]["return"]


def test_diverging_weights_end_the_run_with_a_reason(tmp_path):
    absurd = ["algo.optimizer={name: SGD, args: {lr: 1.0e+38}}", "run=a", "eval.every=null"]
    done = starling.train("ppo-cartpole", [*TINY, "algo.rollout=8", *absurd], runs=tmp_path)
    assert done.failed
    assert "weights are not finite" in done.reason
    assert "weights are not finite" in (done.folder / "log.txt").read_text()


def test_continuing_from_an_older_checkpoint_needs_a_new_folder(parent, tmp_path):
    with pytest.raises(UserError, match=r"there are checkpoints after '400' \(800, 600\).* add run=NAME"):
        starling.resume(parent, checkpoint="400")
    child = branch(parent, child_config(parent, "stop.env_steps=900"), tmp_path, Recorder(), which="400")
    assert child.env_steps >= 900


@pytest.mark.slow
def test_mixed_precision_learns(tmp_path):
    """In a subprocess that uses only instructions that every machine with AVX-512 has.

    16 rounds with four actions: 4 by chance.
    """
    agent = ["env={id: toy/identity, num: 8}", "net.torso.hidden=[32]", "algo.rollout=32", "algo.discount=0.5"]
    settings = ["precision=bfloat16", "algo.optimizer.args.lr=0.005", "stop={env_steps: 4000}", "log.every=500"]
    command = [sys.executable, "-m", "starling", "train", "ppo-cartpole", *agent, *settings]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    command += ["run=mixed", "--runs", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_rows(tmp_path / "mixed" / "metrics.jsonl")[-1]["return"] > 10


class StatusRecorder(Recorder):
    """A display that records statuses and rows."""

    def __init__(self):
        super().__init__()
        self.statuses, self.rows = [], []

    def tick(self, status):
        self.statuses.append(status)

    def row(self, row):
        self.rows.append(row)


def test_speeds_are_per_second_and_frames_include_skipped_ones(tmp_path):
    skipping = ["env={id: CartPole-v1, num: 2, wrappers: [{name: MaxAndSkipObservation, args: {skip: 3}}]}"]
    shown, began = StatusRecorder(), time.monotonic()
    tiny = ["algo.rollout=16", "algo.minibatches=1", "stop={env_steps: 640}", "log.every=64", "net.torso.hidden=[8]"]
    starling.train("ppo-cartpole", [*skipping, *tiny], runs=tmp_path, display=shown)
    took, row = time.monotonic() - began, shown.rows[-1]
    assert 0 < row["time/seconds"] < took
    assert row["time/steps_per_s"] == pytest.approx(640 / row["time/seconds"], rel=0.05)
    assert row["time/frames_per_s"] == pytest.approx(3 * row["time/steps_per_s"], rel=0.01)
    for status in shown.statuses:
        assert status.frames_per_s == pytest.approx(3 * status.steps_per_s)


def test_result_has_the_number_of_episodes_and_the_evaluation(tmp_path):
    """An episode has 16 steps: 10 in 160. The evaluation has the better score, since training always explores."""
    settings = [*TINY, "env.id=toy/identity", "stop={env_steps: 160}", "algo.fragment=4", "algo.learning_starts=8"]
    settings += ["algo.epsilon=1", "eval={every: 80, episodes: 5}", "checkpoint.every=160"]
    result = starling.train("dqn-cartpole", settings, runs=tmp_path)
    rows = read_rows(result.folder / "metrics.jsonl")
    assert (result.scored, result.score) == (10, rows[-1]["return"])
    assert (result.eval_episodes, result.evaluation) == (5, rows[-1]["eval/return"])
    log = (result.folder / "log.txt").read_text().splitlines()[-1]
    assert f"score {result.score:,.2f} (last 10 episodes), evaluation {result.evaluation:,.2f} (5 episodes)" in log
    *_, score, evaluation, _, _, _ = closing_lines(result).splitlines()
    assert score == f"score:    {result.score:.3g} (mean return of the last 10 episodes, 160 env steps)"
    assert evaluation == f"eval:     {result.evaluation:.3g} (mean return of 5 episodes without exploration)"
    resumed = starling.resume(result.folder)
    assert (resumed.scored, resumed.evaluation) == (10, result.evaluation)
    assert "eval:" not in closing_lines(replace(result, evaluation=None))
    assert " (return of one episode without exploration)\n" in closing_lines(replace(result, eval_episodes=1))
    assert "none, no episode has ended yet" in closing_lines(replace(result, score=None, scored=0))
