"""Fixtures of the learning tests: each test runs for three seeds, and each trained agent adds one row of results.

Rows go to build/learn.jsonl, or with `--record` to results.jsonl in this folder, which is under version control.
"""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

import starling
from starling.tools.benchmark.machine import describe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDED, SCRATCH = HERE / "results.jsonl", ROOT / "build" / "learn.jsonl"
SEEDS = (1, 2, 3)
SETTINGS = ["stop.return=null", "checkpoint.replay=false", "checkpoint.keep=1", "threads=1"]
sys.path.append(str(ROOT / "benchmarks"))  # some tests use envs and agents of the benchmarks
MINUTES = 30
"""Time limit for one test and seed, on a busy machine."""


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="append results to tests/learn/results.jsonl")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(60 * MINUTES))


@pytest.fixture(params=SEEDS, ids=lambda seed: f"seed{seed}")
def seed(request):
    return request.param


@pytest.fixture
def record(request, seed):
    """`record(variant, score=, env_steps=, seconds=, cpu_seconds=)`: append one row of results."""
    name = request.node.name.replace(f"-seed{seed}", "").replace(f"[seed{seed}]", "").replace(f"seed{seed}-", "")

    def append(variant, *, score, env_steps, seconds, cpu_seconds):
        row = {
            **{"test": f"{request.path.stem}::{name}", "variant": variant, "seed": seed},
            **{"score": round(float(score), 4), "env_steps": env_steps},
            **{"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)},
            **describe("starling-rl", "torch", "numpy", "gymnasium"),
            **{"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")},
        }
        path = RECORDED if request.config.getoption("--record") else SCRATCH
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(row).encode() + b"\n")  # in one call: another worker may append at the same time
        finally:
            os.close(file)

    return append


@pytest.fixture
def trial(record, seed, tmp_path):
    """`trial(variant, preset, settings, measure)`: train an agent with this test's seed, record and return its score.

    `measure(result)` gives the score of a `starling.Result`; by default it is the mean return of the last 100 training
    episodes. The run ends at `stop.env_steps`, or when that mean reaches `stop.return`.
    """

    def train(variant, preset, settings, measure=lambda result: result.score):
        started, cpu_started = time.monotonic(), time.process_time()
        run = f"run=trial-{len(list(tmp_path.iterdir()))}"
        result = starling.train(preset, [*SETTINGS, *settings, f"seed={seed}", run], runs=tmp_path)
        durations = {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - cpu_started}
        assert result.exit_code == 0
        score = measure(result)
        record(variant, score=score, env_steps=result.env_steps, **durations)
        return score

    return train


@cache
def commit():
    """The tested commit, with a + if files differ from it; None outside a git repository."""
    try:
        changes = git("status", "--porcelain", "--", ".", f":!{RECORDED.relative_to(ROOT)}")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout.strip()
