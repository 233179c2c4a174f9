"""The command `starling`, called in a stranger's folder, imports nothing from there in any process it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.ray_support import cluster

import starling
from starling.runtime.current_folder import kept_off_path

COMMAND = Path(sys.executable).with_name("starling")
SOURCE = str(Path(starling.__file__).parents[1])
PLANTED = ("multiprocessing", "torch", "numpy", "starling", "gymnasium", "numba", "ray", "pydantic")
MARK = """
import sys
from pathlib import Path
with Path({marks!r}).open("a") as file:
    print(__name__, sys.orig_argv, file=file)
"""
SMALL = ["impala-cartpole", "env.num=2", "actors=2", "net.torso.hidden=[8]", "stop.env_steps=400", "stop.return=null"]


@pytest.fixture
def planted(tmp_path):
    """A folder with modules that leave a mark outside of it when they are imported."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(MARK.format(marks=str(tmp_path / "marks")))
    return folder


def call(folder, *arguments, path=SOURCE, command=(COMMAND,)):
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)
    marks = folder.parent / "marks"
    return done.returncode, done.stdout + done.stderr, marks.read_text() if marks.exists() else ""


@pytest.mark.parametrize(
    "settings",
    [
        ["runtime=processes"],
        ["runtime=processes", "learners=2"],
        ["compile=true", "precision=bfloat16"],
        pytest.param(["runtime=ray", "learners=2", "ray.learner.cpus=1"], marks=pytest.mark.ray),
    ],
    ids=str,
)
def test_modules_beside_a_run_are_not_imported(planted, settings):
    code, printed, marks = call(planted, "train", *SMALL, *settings, "run=mine", "--runs=.")
    assert marks == ""
    assert code == 0, printed


def test_numba_reads_no_cache_from_the_current_folder(planted):
    """It would unpickle the cache."""
    (planted / ".numba_config.yaml").write_text("cache_dir: numba\n")
    settings = ["algo.prioritized={}", "algo.learning_starts=100", "stop.env_steps=200", "run=mine", "--runs=."]
    code, printed, marks = call(planted, "train", "dqn-cartpole", *settings)
    assert (code, marks) == (0, ""), printed
    assert not (planted / "numba").exists()


READ_SETTINGS = """
{statement}
import matplotlib
print(matplotlib.rcParams["savefig.dpi"])
"""


@pytest.mark.parametrize(
    "statement",
    [
        "from starling.tools.report.png import check_matplotlib; check_matplotlib()",
        "from starling.tools.report.png import draw; draw([], 'steps', title='', unit='')",
        "from starling.envs.minatar import make; make('MinAtar/Breakout-v1', {})",
    ],
    ids=["check", "draw", "minatar"],
)
def test_matplotlib_reads_no_settings_from_the_current_folder(tmp_path, statement):
    """They could make it start LaTeX, or wait for a FIFO."""
    (tmp_path / "matplotlibrc").write_text("savefig.dpi: 8000\n")
    code, printed, _ = call(tmp_path, "-P", "-c", READ_SETTINGS.format(statement=statement), command=(sys.executable,))
    assert (code, printed.split()[0]) == (0, "figure"), printed


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_modules_beside_a_run_are_not_imported_by_cluster_workers(planted):
    """By default, Ray workers can import from the current folder of the driver."""
    with cluster({"num_cpus": 4}) as nodes:
        settings = [*SMALL, "runtime=ray", f"ray.address={nodes.address}", "run=mine", "--runs=."]
        code, printed, marks = call(planted, "train", *settings)
    assert marks == ""
    assert code == 0, printed


def test_modules_in_the_folder_of_a_resumed_run_are_not_imported(planted, tmp_path):
    started = starling.train(SMALL[0], [*SMALL[1:], "runtime=processes", "run=mine"], runs=tmp_path).folder
    values = yaml.safe_load((started / "config.yaml").read_text())
    values["stop"]["env_steps"] = 800
    (started / "config.yaml").write_text(yaml.safe_dump(values))
    for file in planted.iterdir():
        file.rename(started / file.name)
    code, printed, marks = call(started, "resume", ".")
    assert marks == ""
    assert code == 0, printed


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "throughput", "--preset", *SMALL, "runtime=processes", "--seconds=0.1"],
        ["plan", *SMALL, "--seconds=0.1"],
        ["verify-resume", *SMALL, "--steps=200"],
    ],
    ids=lambda command: command[0],
)
def test_modules_in_the_current_folder_are_not_imported_by_helper_processes(planted, command):
    code, printed, marks = call(planted, *command)
    assert marks == ""
    assert code == 0, printed


MODULE = """
from gymnasium.envs.classic_control import CartPoleEnv

class Env(CartPoleEnv):
    pass
"""


@pytest.mark.parametrize(
    ("command", "path", "runtime"),
    [
        ((COMMAND,), f".{os.pathsep}{SOURCE}", "processes"),
        ((sys.executable, "-m", "starling"), SOURCE, "processes"),
        pytest.param((sys.executable, "-m", "starling"), SOURCE, "ray", marks=pytest.mark.ray),
    ],
)
def test_modules_in_the_current_folder_are_imported_on_request(tmp_path, command, path, runtime):
    (tmp_path / "mylab.py").write_text(MODULE)
    settings = [*SMALL, f"runtime={runtime}", "env.id=mylab:Env", "run=mine", "--runs=."]
    code, printed, _ = call(tmp_path, "train", *settings, path=path, command=command)
    assert code == 0, printed


def test_environment_variables_are_restored_after_overlapping_threads(tmp_path, monkeypatch):
    """The variable is set as long as any thread needs it, and restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    first, second = kept_off_path(), kept_off_path()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["PYTHONSAFEPATH"] == "1"
    second.__exit__(None, None, None)
    assert "PYTHONSAFEPATH" not in os.environ
