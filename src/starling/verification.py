"""Proof that a resumed run is the run that was never killed: real processes, a real kill, every byte compared."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starling.errors import UserError
from starling.runs import checkpoint
from starling.runs.folder import RunFolder
from starling.runs.metrics import TIMING, read_rows

ATTEMPTS = 3


def verify(source: str, overrides: Sequence[str], steps: int, say: Callable[[str], None]) -> list[str]:
    """Differences between a run of 2N env steps and one that is killed after N and resumed; empty when equal."""
    with tempfile.TemporaryDirectory(prefix="starling-verify-") as scratch:
        settings = [source, *overrides, f"checkpoint.every={steps}", f"stop.env_steps={2 * steps}", "stop.return=null"]
        say(f"one run of {2 * steps:,} env steps")
        whole = _train(settings, Path(scratch), "whole")
        _wait(whole)
        say(f"the same run, killed after its checkpoint at {steps:,}")
        killed = _killed_run(settings, Path(scratch), steps)
        say("resuming it")
        _wait(_starling(["resume", str(killed.path)]))
        return compare(RunFolder(Path(scratch) / "whole"), killed)


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """What differs between the last checkpoints and the metrics of two runs, leaving out timings."""
    differences = []
    mine, theirs = (max(run.checkpoints.glob("step-*")) for run in (one, other))
    if mine.name != theirs.name:
        return [f"the last checkpoints are {mine.name} and {theirs.name}"]
    for name in sorted({file.name for folder in (mine, theirs) for file in folder.iterdir()}):
        if name != "manifest.json" and not _same_bytes(mine / name, theirs / name):
            differences.append(f"{mine.name}/{name}")
    places = [checkpoint.segment_names(folder) for folder in (mine, theirs)]
    paths = sorted(places[0].keys() | places[1].keys())
    differences += [f"{mine.name}: segments of {path}" for path in paths if places[0].get(path) != places[1].get(path)]
    rows = [[_without_timing(row) for row in read_rows(run.metrics_file)] for run in (one, other)]
    if len(rows[0]) != len(rows[1]):
        differences.append(f"metrics.jsonl has {len(rows[0])} rows and {len(rows[1])}")
    for number, (a, b) in enumerate(zip(*rows, strict=False), start=1):
        unequal = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
        if unequal:
            differences.append(f"metrics.jsonl row {number}: {', '.join(unequal)}")
    return differences


def _without_timing(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if not key.startswith(TIMING)}


def _same_bytes(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def _starling(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "starling", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _train(settings: list[str], runs: Path, name: str) -> subprocess.Popen[str]:
    return _starling(["train", *settings, f"run={name}", "--runs", str(runs)])


def _wait(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        raise UserError(f"the run failed:\n{errors.strip()}")


def _killed_run(settings: list[str], runs: Path, steps: int) -> RunFolder:
    """A run that was killed after its first checkpoint; one that was too quick for that is tried again."""
    for attempt in range(ATTEMPTS):
        run = RunFolder(runs / f"killed-{attempt}")
        if _kill_after_checkpoint(_train(settings, runs, run.path.name), run):
            return run
    raise UserError(f"the run ended before it could be killed; raise --steps above {steps:,}")


def _kill_after_checkpoint(process: subprocess.Popen[str], run: RunFolder) -> bool:
    """Whether the kill came before the run's own end."""
    while not list(run.checkpoints.glob("step-*")):
        if process.poll() is not None:
            _wait(process)
            return False
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL
