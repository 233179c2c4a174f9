"""Commands whose env has a fault: a one-line error, the env's own traceback once, and no loss of saved data."""

import pytest

from starling.envs.vector import MOST_DROPPED
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

ADVICE = "; fix the env, then start again or resume the run from its last checkpoint"
ID = "support.faulty_env:Faulty"
SHORT = [
    f"env.id={ID}", "env.num=2", "algo.rollout=8", "algo.minibatches=1", "stop.env_steps=400", "stop.return=null",
    "checkpoint.every=100",
]  # fmt: skip


@pytest.fixture
def train(in_process, tmp_path):
    """`train(what, **args)`: run training on an env with this fault; returns its outcome."""

    def run(what, **args):
        settings = [f"env.args.{name}={value}" for name, value in args.items()]
        return in_process(
            "train", "ppo-cartpole", *SHORT, f"env.args.what={what}", *settings, "run=mine", "--runs", tmp_path
        )

    return run


def test_env_that_raises_ends_the_run_and_keeps_saved_data(train, in_process, tmp_path):
    code, _, complaint = train("raise_step", when=120, once=tmp_path / "done")
    assert code == 1, complaint
    *traceback, line = complaint.splitlines()
    fault = f"env '{ID}' raised in step: RuntimeError: told to raise in step (env 0)"
    assert line == f"error: {fault}{ADVICE}"
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "RuntimeError: told to raise in step"
    assert complaint.count("Traceback") == 1
    assert "faulty_env.py" in complaint
    assert "training.py" not in complaint
    place = RunFolder(tmp_path / "mine")
    log = place.log_file.read_text()
    assert log.count(fault) == 1
    assert log.count("Traceback (most recent call last):") == 1
    assert [path.name for path in place.checkpoints.glob("step-*")] != []
    code, printed, complaint = in_process("resume", place.path)
    assert code == 0, complaint
    assert "stop.env_steps=400 reached" in printed


def test_persistent_non_finite_values_end_the_run_without_a_traceback(train):
    code, _, complaint = train("nan_reward", when=20)
    assert code == 1
    what = f"gave NaN in its reward, in {MOST_DROPPED} consecutive episodes"
    assert complaint == f"error: env '{ID}' {what} (env 0){ADVICE}\n"


def test_episode_with_a_non_finite_value_is_dropped_reported_and_counted(train, tmp_path):
    code, printed, complaint = train("nan_obs", when=20, once=tmp_path / "done")
    assert code == 0, complaint
    line = f"env '{ID}' gave NaN in its observation (env 0): its episode was dropped"
    assert printed.count(line) == 1
    place = RunFolder(tmp_path / "mine")
    assert line in place.log_file.read_text()
    rows = list(read_rows(place.metrics_file))
    assert rows[0]["envs/dropped"] == 0
    assert rows[-1]["envs/dropped"] == 1


def test_text_as_reward_is_a_one_line_error(train):
    code, _, complaint = train("text_reward", when=20)
    assert code == 1
    assert complaint == f"error: env '{ID}' gave the reward '1.5', a str, which is not a number (env 0){ADVICE}\n"


def test_observations_far_outside_their_space_cause_one_warning(train, in_process, tmp_path):
    code, printed, complaint = train("far_obs", when=20)
    assert code == 0, complaint
    line = f"warning: env '{ID}' gave 1000 in its observation, where its space has 0 to 1 (env 0): widen the bounds"
    assert printed.count(line) == printed.count("warning:") == 1
    place = RunFolder(tmp_path / "mine")
    assert in_process("resume", place.path, "stop.env_steps=500", "run=mine2")[0] == 0
    assert place.log_file.read_text().count(line) == 1
    assert line not in RunFolder(tmp_path / "mine2").log_file.read_text().partition("a branch of")[2]


def test_env_that_cannot_be_made_leaves_no_run_folder(train, tmp_path):
    code, _, complaint = train("raise_construct")
    assert code == 1
    assert complaint.splitlines()[-1] == (
        f"error: env '{ID}' raised in construction: RuntimeError: told to raise in construction (env 0){ADVICE}"
    )
    assert not (tmp_path / "mine").exists()


def test_fault_in_an_evaluation_is_reported_in_the_same_way(train, in_process, tmp_path):
    assert train("raise_reset", when=600)[0] == 0
    place = RunFolder(tmp_path / "mine")
    place.config_file.write_text(place.config_file.read_text().replace("when: 600", "when: 0"))
    code, _, complaint = in_process("eval", place.path, "--episodes", 1)
    assert code == 1
    assert complaint.splitlines()[-1].startswith(f"error: env '{ID}' raised in reset: RuntimeError: told to")
