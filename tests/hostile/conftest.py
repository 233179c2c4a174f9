"""A tiny trained run and its exported replay, copied for every attack; commands run in this process."""

import resource
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from corpus import SETTINGS, STACKED, Ended, Place, newest_of

from starling.cli import main
from starling.cli.main import app


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """Two unmodified runs with three checkpoints each, `run` and `stacked`, and the replay of the first, `export`."""
    root = tmp_path_factory.mktemp("sound")
    for name, settings in (("run", SETTINGS), ("stacked", STACKED)):
        ends = ["checkpoint.every=100", "stop.env_steps=300", f"run={name}", f"--runs={root}"]
        assert app(["train", *settings, *ends], standalone_mode=False) == 0
    app(["replay", "export", str(root / "run"), f"--out={root / 'export'}"], standalone_mode=False)
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    return root


@pytest.fixture
def place(sound, tmp_path):
    """Copies to attack, and a folder outside of them that must not change."""
    for name in ("run", "stacked", "export"):
        shutil.copytree(sound / name, tmp_path / name)
    (tmp_path / "weights").mkdir()
    shutil.copy(newest_of(tmp_path / "run") / "learner.safetensors", tmp_path / "weights" / "w.safetensors")
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("precious.txt", "precious.json", "precious.bin"):
        (outside / name).write_text('{"kept": true}')
    (tmp_path / "scratch").mkdir()
    return Place(tmp_path)


@pytest.fixture
def starling(monkeypatch, capfd):
    """`starling(*arguments)` runs a command in this process and returns its `Ended`."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["starling", *map(str, arguments)])
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of the memory in use
        before, started = _memory("VmRSS"), time.process_time()
        with pytest.raises(SystemExit) as ended:
            main.main()
        seconds = time.process_time() - started
        printed = capfd.readouterr()
        return Ended(ended.value.code or 0, printed.out, printed.err, seconds, _memory("VmHWM") - before)

    return run


def _memory(which):
    """Memory of this process in bytes: VmRSS is its current size, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
