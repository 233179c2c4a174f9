"""The examples train with the commands in their first lines, and learn.

With STARLING_MATRIX=whole each example trains under every runtime.
"""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from starling.cli.main import app
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

ROOT = Path(__file__).parent.parent
WHOLE = os.environ.get("STARLING_MATRIX") == "whole"
RUNTIMES = {
    "inline": [],
    "processes": ["runtime=processes"],
    "central": ["runtime=processes", "inference=central"],
    "ray": ["runtime=ray"],
}
EXAMPLES = ("own_algorithm", "own_sampler", "own_network", "own_curiosity")
PAIRS = [
    pytest.param(example, runtime, marks=[pytest.mark.ray] if runtime == "ray" else [])
    for example, runtime in (product(EXAMPLES, RUNTIMES) if WHOLE else zip(EXAMPLES, RUNTIMES, strict=True))
]


def train_in_subprocess(arguments):
    env = {**os.environ, "PYTHONPATH": "examples"}  # relative, as in the README
    command = [sys.executable, "-m", "starling", "train", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def train_in_process(monkeypatch):
    def train(arguments):
        monkeypatch.chdir(ROOT)
        monkeypatch.syspath_prepend(ROOT / "examples")
        assert app(["train", *arguments], standalone_mode=False) == 0

    return train


@pytest.mark.usefixtures("ray_token")
@pytest.mark.parametrize(("example", "runtime"), PAIRS)
def test_example_trains_under_every_runtime(example, runtime, tmp_path, train_in_process):
    subprocess_only = WHOLE or runtime in ("inline", "ray")
    arguments = [f"examples/{example}.yaml", "run=own", "--runs", str(tmp_path), *RUNTIMES[runtime]]
    (train_in_subprocess if subprocess_only else train_in_process)(arguments)
    rows = read_rows(RunFolder(tmp_path / "own").metrics_file)
    if example == "own_curiosity":  # check that the agent earns an intrinsic reward and its network learns
        with_reward = [row for row in rows if "loss/reward/reconstruction" in row]
        assert with_reward[0]["loss/reward/reconstruction"] > 0
        assert with_reward[-1]["loss/curiosity/reconstruction"] < 0.5 * with_reward[0]["loss/curiosity/reconstruction"]
    else:
        assert rows[-1]["return"] > 0.7  # 0.8 at best, about -2 at the start
