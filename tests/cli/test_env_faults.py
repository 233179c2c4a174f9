"""Commands whose env misbehaves: one clear line, the env's own traceback once, and nothing saved is lost."""

import subprocess
import sys

from starling.envs.vector import MOST_DROPPED
from starling.runs.folder import RunFolder
from starling.runs.metrics import read_rows

ADVICE = "; mend the env, then start again or resume the run from its last checkpoint"
SHORT = [
    "env.id=toy/faulty", "env.num=2", "algo.rollout=8", "algo.minibatches=1", "stop.env_steps=400", "stop.return=null",
    "checkpoint.every=100",
]  # fmt: skip


def starling(*arguments):
    command = [sys.executable, "-m", "starling", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def train(runs, what, **args):
    settings = [f"env.args.{name}={value}" for name, value in args.items()]
    return starling("train", "ppo-cartpole", *SHORT, f"env.args.what={what}", *settings, "run=mine", "--runs", runs)


def test_an_env_that_raises_ends_the_run_and_what_was_saved_stays(tmp_path):
    done = train(tmp_path, "raise_step", when=120, once=tmp_path / "done")
    assert done.returncode == 1, done.stderr
    *traceback, line = done.stderr.splitlines()
    assert line == f"error: env 'toy/faulty' raised in step: RuntimeError: told to raise in step (row 0){ADVICE}"
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "RuntimeError: told to raise in step"
    assert done.stderr.count("Traceback") == 1
    assert "toy_faulty.py" in done.stderr
    assert "training.py" not in done.stderr
    assert [path.name for path in RunFolder(tmp_path / "mine").checkpoints.glob("step-*")] != []
    again = starling("resume", tmp_path / "mine")
    assert again.returncode == 0, again.stderr
    assert "stop.env_steps=400 reached" in again.stdout


def test_the_log_keeps_the_fault_and_its_traceback_once(tmp_path):
    train(tmp_path, "raise_step", when=20)
    log = RunFolder(tmp_path / "mine").log_file.read_text()
    assert log.count("env 'toy/faulty' raised in step: RuntimeError: told to raise in step (row 0)") == 1
    assert log.count("Traceback (most recent call last):") == 1


def test_numbers_that_stay_away_end_the_run_without_a_traceback(tmp_path):
    done = train(tmp_path, "nan_reward", when=20)
    assert done.returncode == 1
    what = f"gave NaN in its reward, in {MOST_DROPPED} episodes one after another"
    assert done.stderr == f"error: env 'toy/faulty' {what} (row 0){ADVICE}\n"


def test_an_episode_that_loses_its_numbers_once_is_dropped_named_and_counted(tmp_path):
    done = train(tmp_path, "nan_obs", when=20, once=tmp_path / "done")
    assert done.returncode == 0, done.stderr
    line = "env 'toy/faulty' gave NaN in its observation (row 0): its episode was dropped"
    assert done.stdout.count(line) == 1
    place = RunFolder(tmp_path / "mine")
    assert line in place.log_file.read_text()
    rows = list(read_rows(place.metrics_file))
    assert rows[0]["envs/dropped"] == 0
    assert rows[-1]["envs/dropped"] == 1


def test_an_env_that_cannot_be_made_leaves_no_run_behind(tmp_path):
    done = train(tmp_path, "raise_construct")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: env 'toy/faulty' raised in construction: RuntimeError: told to raise in construction (row 0){ADVICE}"
    )
    assert not (tmp_path / "mine").exists()


def test_an_evaluation_ends_the_same_way(tmp_path):
    assert train(tmp_path, "raise_reset", when=600).returncode == 0
    place = RunFolder(tmp_path / "mine")
    place.config_file.write_text(place.config_file.read_text().replace("when: 600", "when: 0"))
    done = starling("eval", place.path, "--episodes", 1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: env 'toy/faulty' raised in reset: RuntimeError: told to")
