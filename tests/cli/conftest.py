"""Fixtures that run commands in this process, since a subprocess would import everything again."""

import os
import subprocess
import sys

import pytest

from starling.cli import main

RENDER = """
import mujoco
assert mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 32, 32).render().shape == (32, 32, 3)
"""


@pytest.fixture(scope="session")
def mujoco_gl():
    """The library with which MuJoCo can render without a screen; skips tests that need one if there is none."""
    reasons = []
    for name in ("egl", "osmesa"):
        command, environment = [sys.executable, "-c", RENDER], {**os.environ, "MUJOCO_GL": name}
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if probe.returncode == 0:
            return name
        reasons += [f"{name}: {line}" for line in probe.stderr.splitlines()[-1:]]
    return pytest.skip(f"MuJoCo cannot draw here ({'; '.join(reasons)})")


@pytest.fixture(autouse=True)
def _reset_rendering_environment():
    """`starling play` sets environment variables for rendering, which other tests must not inherit."""
    before = dict(os.environ)
    yield
    for name in ("MUJOCO_GL", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        if name not in before:
            os.environ.pop(name, None)


@pytest.fixture
def in_process(monkeypatch, capfd):
    """Runs one command in this process; returns its exit code, stdout, and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["starling", *map(str, arguments)])
        capfd.readouterr()  # what the test printed before, when it trained for instance
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capfd.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run
