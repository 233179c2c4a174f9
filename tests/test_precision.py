"""The precision of a run is chosen once, from the CPU's flags, and saved."""

import pytest

import starling
from starling import hardware
from starling.api import Quiet
from starling.config.load import load
from starling.errors import UserError
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.train import branch
from starling.hardware import has_bfloat16_flag, settle_precision

ZEN4 = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n"
SAPPHIRE_RAPIDS = "processor\t: 0\nflags\t\t: fpu avx512f amx_tile amx_bf16\nvmx flags\t: vnmi\n"
HASWELL = "processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t\t: avx512_bf16\n"
GRAVITON3 = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve i8mm bf16 dgh\n"
GRAVITON2 = "processor\t: 0\nFeatures\t: fp asimd asimdhp lrcpc\n"
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
TINY = ["net.torso.hidden=[8]", "stop.return=null", "env.num=2", "algo.rollout=16", "stop.env_steps=64"]


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (ZEN4, True),
        (SAPPHIRE_RAPIDS, True),
        (GRAVITON3, True),
        (ZEN4 + ZEN4, True),
        (HASWELL, False),
        (GRAVITON2, False),
        (GRAVITON3 + GRAVITON2, False),  # not on every core
        ("", False),
        ("model name : avx512_bf16\n", False),
    ],
)
def test_bfloat16_needs_the_flag_on_every_core(text, has):
    assert has_bfloat16_flag(text) is has


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(text, trial)`: simulate a CPU with /proc/cpuinfo `text`, on which `trial` is run as a test."""

    def set_up(text, trial="pass"):
        file = tmp_path / "cpuinfo"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(hardware, "CPU_INFO", file)
        monkeypatch.setattr(hardware, "BFLOAT16_TRIAL", trial)

    return set_up


def resolved(precision):
    return settle_precision(load("ppo-cartpole", ["device=cpu", f"precision={precision}"])).precision


@pytest.mark.parametrize(
    ("text", "trial", "precision"),
    [
        (ZEN4, "pass", "bfloat16"),
        (HASWELL, "pass", "float32"),
        (ZEN4, CRASH, "float32"),  # the flag is there, but the instruction fails
        (None, "pass", "float32"),  # not on Linux
    ],
)
def test_auto_needs_the_flag_and_a_successful_trial(machine, text, trial, precision):
    machine(text, trial)
    assert resolved("auto") == precision
    assert resolved("float32") == "float32"


def test_explicit_bfloat16_is_used_or_refused(machine):
    machine(HASWELL)
    assert resolved("bfloat16") == "bfloat16"
    machine(HASWELL, CRASH)
    with pytest.raises(UserError, match=r"^precision=bfloat16 does not work on this CPU \(SIGILL in a trial\); use"):
        resolved("bfloat16")


class Recorder(Quiet):
    def __init__(self):
        self.lines = []

    def message(self, line):
        self.lines.append(line)


def test_auto_precision_is_chosen_once_logged_and_saved(machine, tmp_path):
    machine(ZEN4)
    display = Recorder()
    run = starling.train("ppo-cartpole", [*TINY, "precision=auto", "run=a"], runs=tmp_path, display=display).folder
    assert display.lines[:2] == [f"run: {run}", "precision: bfloat16, chosen by precision=auto"]
    assert RunFolder(run).config().precision == "bfloat16"
    machine(HASWELL, CRASH + "  # here")  # another machine, which does not support the saved precision
    with pytest.raises(UserError, match="precision=bfloat16 does not work on this CPU"):
        starling.resume(run)
    config = load(str(RunFolder(run).config_file), ["precision=auto", "stop.env_steps=128", "run=b"])
    child = branch(run, config, tmp_path, display).folder
    assert "changed: precision: bfloat16 -> float32" in display.lines
    assert RunFolder(child).config().precision == "float32"


def test_explicit_precision_is_not_logged(tmp_path):
    display = Recorder()
    run = starling.train("ppo-cartpole", [*TINY, "run=a"], runs=tmp_path, display=display).folder
    assert not any(line.startswith("precision") for line in display.lines)
    assert RunFolder(run).config().precision == "float32"
