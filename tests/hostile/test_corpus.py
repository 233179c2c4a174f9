"""Every attack of the corpus ends in one line and exit code 2, or in the older checkpoint, within 5 s and 500 MB."""

import os
import subprocess
import sys

import attacks_checkpoints
import attacks_exports
import attacks_imports
import attacks_links
import attacks_reports  # noqa: F401
import attacks_sizes  # noqa: F401 (its attacks are in the corpus)
import attacks_states  # noqa: F401
import attacks_weights  # noqa: F401
import pytest
from corpus import CASES, FALLS_BACK, REFUSED, UNHARMED, UNTOUCHED, Case, snapshot

SECONDS, BYTES = 5.0, 500e6
MEASURED = """
import atexit, re
from pathlib import Path
from starling.__main__ import main

@atexit.register
def note():
    peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
    Path("memory").write_text(peak[1])

main()
"""
"""Runs a command and writes its peak memory in kB to a file; rusage would include the memory of its parent."""


def assert_expected_outcome(case, ended):
    assert "Traceback" not in ended.out + ended.err, ended.err
    errors = ended.err.splitlines()
    if case.ends in (REFUSED, UNTOUCHED):
        assert ended.code == 2, ended
        assert len(errors) == 1, errors
        assert errors[0].startswith("error: "), errors
        assert errors[0].isprintable(), errors
        assert len(errors[0]) < 2000, errors
    elif case.ends == FALLS_BACK:
        assert ended.code == 0, ended
        said = [line for line in ended.out.splitlines() if "checkpoint skipped" in line]
        assert len(said) == 1, ended.out
        assert said[0].isprintable()
    else:
        assert case.ends == UNHARMED
        assert ended.code == 0, ended


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attack(case, place, starling):
    case.make(place)
    outside, run, export = (snapshot(folder) for folder in (place.outside, place.run, place.export))
    ended = starling(*place.command(case.command))
    assert_expected_outcome(case, ended)
    assert snapshot(place.outside) == outside, "something outside the run has changed"
    assert snapshot(place.export) == export
    assert not (place.root / "scratch" / "child").exists() or case.ends in (FALLS_BACK, UNHARMED)
    if case.ends == UNTOUCHED:
        assert snapshot(place.run) == run, "something was written or removed first"
    assert ended.seconds < SECONDS, f"{ended.seconds:.1f} s"
    assert ended.memory < BYTES, f"{ended.memory / 1e6:.0f} MB"


@pytest.mark.parametrize("command", sorted({case.command for case in CASES} - {"eval ²", "eval 1"}))
def test_without_an_attack_every_command_succeeds(command, place, starling):
    """Otherwise an attack could be rejected for another reason."""
    ended = starling(*place.command(command))
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert "skipped" not in ended.out


def test_run_may_be_opened_through_a_link(place, starling):
    link = place.root / "mine"
    link.symlink_to(place.run)
    assert starling("resume", link).code == 0


def test_foreign_files_among_segments_are_not_removed(place, starling):
    attacks_checkpoints.foreign_files_among_segments(place)
    assert starling("resume", place.run).code == 0
    assert (place.run / "checkpoints" / "segments" / "notes.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(attacks_links.segments_is_a_link, "resume", UNTOUCHED),
        Case(attacks_imports.the_env_is_a_shell, "eval", UNTOUCHED),
        Case(attacks_checkpoints.a_document_that_is_deep, "eval", FALLS_BACK),
        Case(attacks_checkpoints.a_manifest_of_millions_of_lists, "eval", FALLS_BACK),
        Case(attacks_exports.everything_is_nan, "start", REFUSED),
    ],
    ids=str,
)
def test_attack_in_a_subprocess(case, place):
    """Limits for the whole process, including torch."""
    case.make(place)
    outside = snapshot(place.outside)
    command = [sys.executable, "-c", MEASURED, *place.command(case.command)]
    with (place.root / "out").open("wb") as out, (place.root / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=place.root)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    errors = (place.root / "err").read_text()
    assert process.returncode == (0 if case.ends == FALLS_BACK else 2), errors
    assert "Traceback" not in errors
    assert snapshot(place.outside) == outside
    memory = int((place.root / "memory").read_text()) * 1024
    assert memory < BYTES, f"{memory / 1e6:.0f} MB"
    assert used.ru_utime + used.ru_stime < 2 * SECONDS, "importing torch takes some of it"


@pytest.mark.slow
def test_checks_work_when_python_skips_asserts(place):
    attacks_checkpoints.sequences_in_the_future(place)
    command = [sys.executable, "-O", "-m", "starling", *place.command("resume")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=place.root, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "a sequence is too long" in ended.stderr
