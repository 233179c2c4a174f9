"""The examples train with the commands in their first lines, and learn.

With STARLING_MATRIX=whole each example trains under every runtime.
"""

import ast
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support import inline_runs

import starling
from starling.cli.main import app
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import read_rows

ROOT = Path(__file__).parent.parent
SOURCES = str(Path(starling.__file__).parents[1])  # subprocesses import the package that is tested
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
    path = os.pathsep.join(("examples", SOURCES))  # relative, as in the README
    env = {**os.environ, "PYTHONPATH": path}
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


def test_own_sampler_gets_priorities_only_with_prioritized_replay(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    source, name = str(ROOT / "examples" / "own_sampler.yaml"), "algo.name=own_sampler:ClippedDQN"
    with pytest.raises(starling.UserError, match=r"set algo\.prioritized="):
        inline_runs.build(source, name)
    monkeypatch.setattr("own_sampler.Clipped.most", 0.1)
    runtime = inline_runs.run(source, 400, name, "algo.prioritized={}")
    (table,) = runtime.store.mixture.tables
    priorities = table._sampler.priorities(np.arange(400))
    assert len(np.unique(priorities)) > 20  # TD errors; without them, all are alike
    assert not ((priorities > 0.11) & (priorities < 0.99)).any()  # 1: not drawn yet


SCRIPTS = {"dqn": 60_000, "ppo": 120_000}
"""Examples that are scripts too, and the env steps of their schedules."""
SCRIPT_RUNS = [
    pytest.param(script, runtime, marks=[pytest.mark.ray] if runtime == "ray" else [])
    for script, runtime in product(SCRIPTS, RUNTIMES)
    if WHOLE or (script, runtime) in {("dqn", "inline"), ("dqn", "ray"), ("ppo", "inline"), ("ppo", "processes")}
]


@pytest.mark.usefixtures("ray_token")
@pytest.mark.parametrize(("script", "runtime"), SCRIPT_RUNS)
def test_script_learns_cartpole_under_every_runtime(script, runtime, tmp_path):
    """From another folder, and without its own folder on PYTHONPATH; a random policy has a return of about 22."""
    settings = ["run=own", "stop.return=60", "seed=1", *RUNTIMES[runtime]]
    command = [sys.executable, str(ROOT / "examples" / f"{script}.py"), *settings]
    env = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"reached stop.return=60; mean return of the last 100 episodes: \d+\.\d\n", done.stdout)
    rows = read_rows(RunFolder(tmp_path / "runs" / "own").metrics_file)
    assert rows[-1]["return"] >= 60
    assert rows[-1]["env_steps"] < SCRIPTS[script]


@pytest.mark.parametrize("name", ["td3", *SCRIPTS])
def test_single_file_algorithms_have_less_than_150_lines(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 150


def not_public(source):
    """Imports and attributes of starling in a file that are not documented as public."""
    builders = (ROOT / "docs" / "ops.md").read_text().partition("## Networks and trees")[2]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("starling."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "starling":
            for name in (name.name for name in node.names):
                public = {
                    "starling": name in {"tree", *starling.__all__},
                    "starling.ops": not name.startswith("_"),
                    "starling.nets": re.search(rf"\b{name}\b", builders) is not None,
                }
                if not public.get(".".join(node.module.split(".")[:2]), False):
                    yield f"{node.module}.{name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "starling":
            yield from {f"starling.{node.attr}"} - {f"starling.{name}" for name in starling.__all__}


@pytest.mark.parametrize("name", ["dqn", "ppo", "td3", "own_algorithm", "own_curiosity", "own_env", "own_network"])
def test_examples_use_only_the_public_api(name):
    """Except own_sampler.py, which extends a built-in algorithm and a built-in sampler."""
    assert list(not_public((ROOT / "examples" / f"{name}.py").read_text())) == []


def test_private_imports_are_found():
    source = "import starling.api\nfrom starling.algos.dqn.dqn import DQN\nstarling.Curious\nstarling.train()"
    assert sorted(not_public(source)) == ["starling.Curious", "starling.algos.dqn.dqn.DQN", "starling.api"]
