"""The examples run as their first lines say, and learn."""

import os
import subprocess
import sys
from pathlib import Path

from starling.runs.folder import RunFolder
from starling.runs.metrics import read_rows

ROOT = Path(__file__).parent.parent


def rows_of(example, runs):
    """The metrics of its training."""
    command = [sys.executable, "-m", "starling", "train", f"examples/{example}", "run=own", "--runs", runs]
    paths = [str(ROOT / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_rows(RunFolder(runs / "own").metrics_file)


def test_an_algorithm_and_an_env_of_ones_own_train_from_one_file_each(tmp_path):
    assert rows_of("own_algorithm.yaml", tmp_path)[-1]["return"] > 0.7  # 0.8 at best, about -2 at first


def test_an_intrinsic_reward_of_ones_own_is_earned_and_its_network_learns(tmp_path):
    rows = [row for row in rows_of("own_curiosity.yaml", tmp_path) if "loss/reward/restoration" in row]
    assert rows[0]["loss/reward/restoration"] > 0
    assert rows[-1]["loss/curiosity/restoration"] < 0.5 * rows[0]["loss/curiosity/restoration"]
