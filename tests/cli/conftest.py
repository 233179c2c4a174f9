"""Runs a command without a process of its own, which would load everything anew."""

import os
import subprocess
import sys

import pytest

from starling.cli import main

DRAW = """
import mujoco
assert mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 32, 32).render().shape == (32, 32, 3)
"""


@pytest.fixture(scope="session")
def mujoco_gl():
    """The library with which MuJoCo draws here without a screen; where none does, tests that need it are skipped."""
    reasons = []
    for name in ("egl", "osmesa"):
        command, environment = [sys.executable, "-c", DRAW], {**os.environ, "MUJOCO_GL": name}
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return name
        reasons += [f"{name}: {line}" for line in tried.stderr.splitlines()[-1:]]
    return pytest.skip(f"MuJoCo cannot draw here ({'; '.join(reasons)})")


@pytest.fixture(autouse=True)
def _drawing_is_chosen_anew():
    """`starling play` chooses in the environment what draws; other tests do without it where there is none."""
    before = dict(os.environ)
    yield
    for name in ("MUJOCO_GL", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        if name not in before:
            os.environ.pop(name, None)


@pytest.fixture
def in_process(monkeypatch, capfd):
    """Runs one command in this process: its exit code, what it printed, what it complained of."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["starling", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capfd.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run
