"""The scripts for people who have a GPU, on a machine without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_check_ends_with_one_line_where_there_is_no_gpu(tmp_path):
    done = run("gpu_check.py", "--report", tmp_path / "report.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu-check needs a GPU, and torch sees none; nothing was run\n"
    assert not (tmp_path / "report.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("check", ["resume", "learners"])
def test_check_can_be_tried_on_a_cpu(check, tmp_path):
    done = run("gpu_check.py", "--device", "cpu", "--only", check, "--report", tmp_path / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report.keys() == {"machine", "device", check}
    assert report[check]["seconds"] > 0


def test_model_adds_up_what_was_counted(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_model import Gpu
    from support.mock_device import Counts

    counts = Counts(kernels=10, flops=10**9, kernel_bytes=10**6, copied_bytes=2 * 10**6)
    counts.waits["x"], counts.to_device["x"], counts.to_host["x"] = 2, 1, 1
    gpu = Gpu(launch=1.0, kernel=0.5, flops=1e9, memory=1e6, copy=0.25, link=1e6, wait=0.125)
    assert gpu.seconds(counts) == 10 + 2 * 0.25 + 2 + 2 * 0.125
    counts.kernels = 1
    assert gpu.seconds(counts) == 1 + 1 + 2 * 0.25 + 2 + 2 * 0.125
