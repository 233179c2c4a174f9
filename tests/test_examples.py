"""The examples run as their first lines say, and learn; with STARLING_MATRIX=whole each under every runtime."""

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


def train_in_a_process(arguments):
    env = {**os.environ, "PYTHONPATH": "examples"}  # relative, as in the README
    command = [sys.executable, "-m", "starling", "train", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def train_here(monkeypatch):
    def train(arguments):
        monkeypatch.chdir(ROOT)
        monkeypatch.syspath_prepend(ROOT / "examples")
        assert app(["train", *arguments], standalone_mode=False) == 0

    return train


@pytest.mark.usefixtures("ray_token")
@pytest.mark.parametrize(("example", "runtime"), PAIRS)
def test_what_is_ones_own_trains_under_every_runtime(example, runtime, tmp_path, train_here):
    alone = WHOLE or runtime in ("inline", "ray")
    said = [f"examples/{example}.yaml", "run=own", "--runs", str(tmp_path), *RUNTIMES[runtime]]
    (train_in_a_process if alone else train_here)(said)
    rows = read_rows(RunFolder(tmp_path / "own").metrics_file)
    if example == "own_curiosity":  # an intrinsic reward is earned, and its network learns
        told = [row for row in rows if "loss/reward/restoration" in row]
        assert told[0]["loss/reward/restoration"] > 0
        assert told[-1]["loss/curiosity/restoration"] < 0.5 * told[0]["loss/curiosity/restoration"]
    else:
        assert rows[-1]["return"] > 0.7  # 0.8 at best, about -2 at first
