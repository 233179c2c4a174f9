"""The precision that a run has: chosen by what the processor says of itself, once, and saved."""

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
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
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
        (GRAVITON3 + GRAVITON2, False),  # not every core
        ("", False),
        ("model name : avx512_bf16\n", False),
    ],
)
def test_flags_of_every_core_decide(text, has):
    assert has_bfloat16_flag(text) is has


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(text, trial)`: a CPU of which Linux says `text`, and code that is tried on it."""

    def set_up(text, trial="pass"):
        file = tmp_path / "cpuinfo"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(hardware, "CPU_INFO", file)
        monkeypatch.setattr(hardware, "BFLOAT16_TRIAL", trial)

    return set_up


def settled(precision):
    return settle_precision(load("ppo-cartpole", ["device=cpu", f"precision={precision}"])).precision


@pytest.mark.parametrize(
    ("text", "trial", "precision"),
    [
        (ZEN4, "pass", "bfloat16"),
        (HASWELL, "pass", "float32"),
        (ZEN4, DIES, "float32"),  # it claims what it does not have
        (None, "pass", "float32"),  # no Linux
    ],
)
def test_auto_is_settled_by_flags_and_a_trial(machine, text, trial, precision):
    machine(text, trial)
    assert settled("auto") == precision
    assert settled("float32") == "float32"


def test_what_is_asked_for_is_taken_or_refused(machine):
    machine(HASWELL)
    assert settled("bfloat16") == "bfloat16"
    machine(HASWELL, DIES)
    with pytest.raises(UserError, match=r"^precision=bfloat16 does not work on this CPU \(SIGILL in a trial\); use"):
        settled("bfloat16")


class Listening(Quiet):
    def __init__(self):
        self.lines = []

    def message(self, line):
        self.lines.append(line)


def test_a_run_chooses_once_says_so_and_saves_its_choice(machine, tmp_path):
    machine(ZEN4)
    heard = Listening()
    run = starling.train("ppo-cartpole", [*TINY, "precision=auto", "run=a"], runs=tmp_path, display=heard).folder
    assert heard.lines[:2] == [f"run: {run}", "precision: bfloat16, chosen by precision=auto"]
    assert RunFolder(run).config().precision == "bfloat16"
    machine(HASWELL, DIES + "  # here")  # another machine, which cannot go on with it
    with pytest.raises(UserError, match="precision=bfloat16 does not work on this CPU"):
        starling.resume(run)
    config = load(str(RunFolder(run).config_file), ["precision=auto", "stop.env_steps=128", "run=b"])
    child = branch(run, config, tmp_path, heard).folder
    assert "changed: precision: bfloat16 -> float32" in heard.lines
    assert RunFolder(child).config().precision == "float32"


def test_a_run_that_is_told_its_precision_says_nothing(tmp_path):
    heard = Listening()
    run = starling.train("ppo-cartpole", [*TINY, "run=a"], runs=tmp_path, display=heard).folder
    assert not any("precision" in line for line in heard.lines)
    assert RunFolder(run).config().precision == "float32"
