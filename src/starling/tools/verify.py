"""Verify that a run that is killed and resumed matches one that was never killed, with real processes.

With the inline runtime, all bytes are compared; otherwise the order of events varies, and counters are compared.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from starling.config.imports import clusters_of, imports_of
from starling.config.load import load, to_saved
from starling.config.schema import Config
from starling.errors import UserError
from starling.experiment.run_folder import checkpoint
from starling.experiment.run_folder.folder import RunFolder
from starling.experiment.run_folder.metrics import TIMING, read_rows

ATTEMPTS = 3


def verify(
    source: str, overrides: Sequence[str], steps: int, say: Callable[[str], None], words: Sequence[str] = ()
) -> list[str]:
    """Kill a run after N env steps and resume it to 2N; returns the problems that were found.

    If `stop.env_steps` is null and `stop.updates` is not, N is in updates, as are the schedules of such a run.

    The imports of `source` were checked before; `words` are those that the user has allowed.
    """
    with tempfile.TemporaryDirectory(prefix="starling-verify-") as scratch:
        config = load(source, overrides)
        allow = [f"--allow={word}" for word in (*words, *_words_for(config))]
        unit = count_of(config)
        limits = dict.fromkeys(("frames", "updates", "episodes", "minutes", "return", "env_steps"), "null")
        limits[unit.replace(" ", "_")] = str(2 * steps)
        settings = [source, *overrides, f"checkpoint.every={steps} {unit}"]
        settings += [f"stop.{key}={value}" for key, value in limits.items()]
        settings += allow
        if not to_the_bit(config):
            return _verify_counters(settings, Path(scratch), steps, unit, say, allow)
        settings.append("checkpoint.exact=true")
        say(f"one run of {2 * steps:,} {unit}")
        whole = _train(settings, Path(scratch), "whole")
        _wait(whole)
        say(f"the same run, killed after its checkpoint at {steps:,}")
        killed = _killed_run(settings, Path(scratch), steps)
        say("resuming it")
        _wait(_starling(["resume", str(killed.path), *allow]))
        return compare(RunFolder(Path(scratch) / "whole"), killed)


def count_of(config: Config) -> Literal["env steps", "updates"]:
    """Return what a run of `config` counts: updates if its length is said in nothing else."""
    stop = config.stop
    return "updates" if stop.env_steps is None and stop.frames is None and stop.updates is not None else "env steps"


def to_the_bit(config: Config) -> bool:
    """Return True if a resumed run can be bitwise identical, which also needs `checkpoint.exact`."""
    return config.runtime == "inline"


def _words_for(config: Config) -> list[str]:
    """Return the words to allow so that a run of `config` can be resumed even without a key to seal it."""
    values = to_saved(config)
    return [each.word for each in (*imports_of(values), *clusters_of(values))]


def _verify_counters(
    settings: list[str], scratch: Path, steps: int, unit: str, say: Callable[[str], None], allow: list[str]
) -> list[str]:
    say(f"a run of {2 * steps:,} {unit}, killed after its checkpoint at {steps:,}")
    run = _killed_run(settings, scratch, steps)
    before, rows = Counters.of(run), read_rows(run.metrics_file)
    say("resuming it")
    _wait(_starling(["resume", str(run.path), *allow]))
    return compare_counters(before, Counters.of(run), rows[: before.rows], read_rows(run.metrics_file))


@dataclass(frozen=True)
class Counters:
    """Counters in the newest checkpoint of a run."""

    rows: int  # of metrics
    episodes: int
    env_steps: int
    updates: int
    inserted: tuple[int, ...]  # env steps inserted into each table, over all shards
    drawn: tuple[int, ...]  # batches sampled from each shard

    @classmethod
    def of(cls, run: RunFolder) -> Counters:
        _, state, _ = checkpoint.find(run.checkpoints, parts=("store", "learner", "session"))
        store, session = state["store"], state["session"]
        shards = [shard for shard in store.get("shards", {"0": store}).values() if "limiter" in shard]
        parts = store["parts"].values() if "parts" in store else [shard["tables"] for shard in shards]  # in a cluster
        tables = zip(*([table["steps"] for table in part.values()] for part in parts), strict=True)
        return cls(
            rows=session["rows"],
            episodes=session["scores"]["episodes"],
            env_steps=store["env_steps"],
            updates=state["learner"]["updates"],
            inserted=tuple(sum(steps) for steps in tables),
            drawn=tuple(shard["limiter"]["sampled"] for shard in shards),
        )


UNDER_WAY = 4
"""Batches that may be sampled but not learned from yet, or learned from but not saved."""


def compare_counters(
    before: Counters, after: Counters, rows: list[dict[str, Any]], all_rows: list[dict[str, Any]]
) -> list[str]:
    """Return the inconsistencies between the checkpoint that a run was resumed from, with its `rows`, and its end."""
    wrong, last = [], all_rows[-1]
    came_in = last["ledger/inserted"]  # since the run was resumed
    if all_rows[: len(rows)] != rows:
        wrong.append("rows of metrics from before the checkpoint have changed")
    for key in ("env_steps", "updates", "episodes"):
        values = [row[key] for row in all_rows]
        if values != sorted(values) or all_rows[len(rows)][key] < getattr(before, key):
            wrong.append(f"metrics.jsonl: {key} decreased")
    if after.env_steps != before.env_steps + came_in:
        wrong.append(f"env_steps: {before.env_steps} at the checkpoint and {came_in} since are not {after.env_steps}")
    wrong += [
        f"steps in a table: {then} at the checkpoint and {came_in} since are not {now}"
        for then, now in zip(before.inserted, after.inserted, strict=True)
        if now != then + came_in
    ]
    learned = after.updates - before.updates
    wrong += [
        f"updates: {now - then} batches were sampled since the checkpoint, and {learned} learned from"
        for then, now in zip(before.drawn, after.drawn, strict=True)
        if abs(now - then - learned) > UNDER_WAY
    ]
    wrong += [
        f"metrics.jsonl row {number}: produced steps are not inserted, open or lost"
        for number, row in enumerate(all_rows, start=1)
        if row["ledger/produced"] != row["ledger/inserted"] + row["ledger/open"] + row["ledger/lost"]
    ]
    return wrong


def compare(one: RunFolder, other: RunFolder) -> list[str]:
    """Return the differences between the last checkpoints and the metrics of two runs, without timings."""
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
        said = [line.removeprefix("error: ") for line in errors.strip().splitlines()]
        raise UserError(*(["the run failed:", *said] if len(said) != 1 else [f"the run failed: {said[0]}"]))


def _killed_run(settings: list[str], runs: Path, steps: int) -> RunFolder:
    """Train a run and kill it after its first checkpoint; retries if the run ends before that."""
    for attempt in range(ATTEMPTS):
        run = RunFolder(runs / f"killed-{attempt}")
        if _kill_after_checkpoint(_train(settings, runs, run.path.name), run):
            return run
    raise UserError(f"the run ended before it could be killed; raise --steps above {steps:,}")


def _kill_after_checkpoint(process: subprocess.Popen[str], run: RunFolder) -> bool:
    """Kill a run after its first checkpoint; returns False if the run ended before that."""
    while not list(run.checkpoints.glob("step-*")):
        if process.poll() is not None:
            _wait(process)
            return False
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL
