"""The examples run as their first lines say, and learn."""

import os
import subprocess
import sys
from pathlib import Path

from starling.runs.folder import RunFolder
from starling.runs.metrics import read_rows

ROOT = Path(__file__).parent.parent


def test_an_algorithm_and_an_env_of_ones_own_train_from_one_file_each(tmp_path):
    command = [sys.executable, "-m", "starling", "train", "examples/own_algorithm.yaml", "run=own", "--runs", tmp_path]
    env = {**os.environ, "PYTHONPATH": "examples"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_rows(RunFolder(tmp_path / "own").metrics_file)[-1]["return"] > 0.7  # 0.8 at best, about -2 at first
