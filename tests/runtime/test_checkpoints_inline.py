"""Checkpoints of inline runs: by default they do not affect training; exact ones cut episodes and resume bitwise."""

import shutil

import pytest

import starling
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import TIMING, read_rows

pytestmark = pytest.mark.slow

SHORT = ["stop.return=null", "stop.env_steps=1600", "log.every=200", "eval.every=800", "eval.episodes=2"]
AGENTS = {
    "dqn": ["dqn-cartpole", "algo.learning_starts=300", "algo.prioritized.alpha=0.6"],
    "ppo": ["ppo-cartpole", "env.num=4", "algo.rollout=100"],
    "ppo central, two loops": ["ppo-cartpole", "env.num=4", "algo.rollout=100", "inference=central", "actors=2"],
    "r2d2": ["r2d2-cartpole", "algo.learning_starts=300"],
    "impala elite": ["impala-elite-cartpole"],
}


def rows_of(path):
    rows = read_rows(RunFolder(path).metrics_file)
    return [{key: value for key, value in row.items() if not key.startswith(TIMING)} for row in rows]


@pytest.mark.parametrize("agent", AGENTS)
def test_rows_do_not_depend_on_the_checkpoint_frequency(agent, tmp_path):
    preset, *settings = AGENTS[agent]
    often, rarely = (
        starling.train(preset, [*settings, *SHORT, f"checkpoint.every={every}"], runs=tmp_path / str(every))
        for every in (70, 100_000)
    )
    assert rows_of(often.folder) == rows_of(rarely.folder)
    assert rows_of(often.folder)[-1]["episodes"] > 0


def test_short_run_with_long_episodes_has_a_score(tmp_path):
    settings = ["stop.env_steps=1000", "checkpoint.every=100", "algo.learning_starts=1000"]
    result = starling.train("sac-pendulum", settings, runs=tmp_path)  # an episode has 200 steps
    assert result.score is not None


@pytest.mark.parametrize("agent", AGENTS)
def test_resumed_run_starts_new_episodes_and_keeps_all_counters(agent, tmp_path):
    preset, *settings = AGENTS[agent]
    uninterrupted = starling.train(preset, [*settings, *SHORT, "checkpoint.every=800", "run=a"], runs=tmp_path).folder
    interrupted = shutil.copytree(uninterrupted, tmp_path / "cut")
    for folder in sorted(RunFolder(interrupted).checkpoints.glob("step-*"))[1:]:
        shutil.rmtree(folder)
    _, state, _ = checkpoint.find(RunFolder(interrupted).checkpoints, parts=("session",))
    saved_rows = state["session"]["rows"]
    assert starling.resume(interrupted).env_steps >= 1600
    after = rows_of(interrupted)
    assert after[:saved_rows] == rows_of(uninterrupted)[:saved_rows]
    assert after[saved_rows:] != rows_of(uninterrupted)[saved_rows:]
    for key in ("env_steps", "updates", "episodes"):
        values = [row[key] for row in after]
        assert values == sorted(values), key
    assert len({row["env_steps"] for row in after}) == len(after)  # no row is written twice


def test_exact_checkpoint_truncates_episodes(tmp_path):
    settings = ["stop.env_steps=1000", "checkpoint.every=100", "algo.learning_starts=1000", "checkpoint.exact=true"]
    result = starling.train("sac-pendulum", settings, runs=tmp_path)
    assert result.score is None


@pytest.mark.parametrize("runtime", ["processes", "ray"])
def test_exact_checkpoints_are_rejected_by_other_runtimes(runtime):
    with pytest.raises(UserError, match=r"checkpoint\.exact needs runtime=inline"):
        load("ppo-cartpole", [f"runtime={runtime}", "checkpoint.exact=true"])
