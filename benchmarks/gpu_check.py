"""Runs on a GPU what has only been run on a mock of one, and writes a report to send; ends with one line without a GPU.

    .venv/bin/python benchmarks/gpu_check.py [--only NAME] [--report FILE] [--device cpu]

Each check runs in a process of its own, so that none can spoil another, and has a time limit. `--device cpu` tries the
script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from machine import describe, spread

import starling
from starling.config.load import load
from starling.experiment.run_folder.metrics import read_rows
from starling.experiment.train import branch
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime
from starling.tools.benchmark.workload import Work

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from support.agents import AGENTS, SMALL, VARIANTS  # type: ignore[import-not-found]  # noqa: E402

LIMIT = 300.0
"""Seconds for one check."""
ANSWER = '["'
"""Prefix of the lines in which a check reports a result."""
INLINE = ["runtime=inline", "compile=false", "precision=float32"]
MODES = {
    "float32": [],
    "tf32": ["precision=tf32"],
    "bfloat16": ["precision=bfloat16"],
    "float16": ["precision=float16"],
    "compiled": ["compile=true"],
    "compiled, CUDA graphs": ["compile=reduce-overhead"],
}
TIMED = {
    "ppo, CartPole": ("ppo-cartpole", []),
    "dqn, Pong": ("dqn-pong", ["env.num=8"]),
    "r2d2, CartPole": ("r2d2-cartpole", []),
}
Values = dict[str, Any]
Found = Iterator[tuple[str, Any]]
"""Results of a check as (name, value), yielded one at a time, so that those before a failure are reported too."""


def agents(device: str) -> Found:
    """Every algorithm acts, learns, and ends near the weights of a CPU; waits are those that torch warns of."""
    for name, (preset, settings) in {**AGENTS, **VARIANTS}.items():
        weights, waits = [], []
        for where in ("cpu", device):
            runtime = build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *INLINE, f"device={where}"])))
            waits = _waits(runtime, where, updates=3)
            weights.append({key: value.cpu() for key, value in runtime.learner.model.state_dict().items()})
            runtime.close()
        apart = [float((weights[1][key].double() - value.double()).abs().max()) for key, value in weights[0].items()]
        yield name, {"largest difference of weights": max(apart), "waits in the last turns": waits[-3:]}


def _waits(runtime: Any, where: str, updates: int) -> list[int]:
    """Learn; returns how often the host waited, as torch counts it, in each turn of the run."""
    counts = []
    debug = where.startswith("cuda")
    try:
        if debug:
            torch.cuda.set_sync_debug_mode("warn")
        run = runtime.run()
        while runtime.updates < updates:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                next(run)
            counts.append(sum("synchroniz" in str(one.message) for one in caught))
    finally:
        if debug:
            torch.cuda.set_sync_debug_mode("default")
    return counts


def modes(device: str) -> Found:
    """Seconds per update of PPO and of a convolutional network in every precision and compilation."""
    for agent, (preset, settings) in TIMED.items():
        for mode, more in MODES.items():
            yield f"{agent}: {mode}", _time_updates(preset, [*settings, *more, f"device={device}"])


def _time_updates(preset: str, settings: list[str]) -> Any:
    """Milliseconds of updates and of acts."""
    try:
        work = Work(RunPlan.from_config(load(preset, ["runtime=inline", "stop.return=null", *settings])))
    except Exception as error:
        return f"failed: {_line(error)}"
    times: dict[str, list[float]] = {"update": [], "act": []}
    for kind, call in (("update", work.train), ("act", work.infer)):
        end = time.perf_counter() + 2.0
        while time.perf_counter() < end and len(times[kind]) < 30:
            start = time.perf_counter()
            call()
            times[kind].append(1000 * (time.perf_counter() - start))
    compiled = work.learner.drain_metrics().get("learner/compiled")
    work.close()
    return {**{kind: spread(values) for kind, values in times.items()}, "compiled": compiled}


def resume(device: str) -> Found:
    """A run of a CPU continues on the GPU and back."""
    for agent in ("ppo", "sac", "r2d2"):
        preset, settings = AGENTS[agent]
        with tempfile.TemporaryDirectory() as folder:
            run = starling.train(
                preset, [*SMALL, *settings, *INLINE, "device=cpu", "stop.env_steps=600", "run=a"], runs=folder
            )
            for name, where, steps in (("b", device, 1200), ("c", "cpu", 1800)):
                config = load(
                    str(run.folder / "config.yaml"), [f"device={where}", f"stop.env_steps={steps}", f"run={name}"]
                )
                run = branch(run.folder, config, Path(folder), starling.api.Quiet())
            yield agent, {"updates": run.updates, "env_steps": run.env_steps}


def processes(device: str) -> Found:
    """Actors on the CPU open no context on the GPU, and the server of central inference opens one."""
    choices = {
        "local inference": ([], 1),
        "central inference": (["inference=central"], 2),
        "actors on the GPU": ([f"device.actors={device}"], 3),
    }
    for name, (more, contexts) in choices.items():
        preset, settings = AGENTS["impala"]
        override = [*SMALL, *settings, "runtime=processes", "actors=2", f"device={device}", *more]
        seen: list[int] = [0]
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(seen, ended))
        watcher.start()
        with tempfile.TemporaryDirectory() as folder:
            run = starling.train(preset, [*override, "stop.env_steps=40000", "run=a"], runs=folder)
            speeds = [row.get("time/steps_per_s") for row in read_rows(run.folder / "metrics.jsonl")]
        ended.set()
        watcher.join()
        found = {"updates": run.updates, "env steps per second": speeds[-1]}
        yield name, {**found, "processes on the GPU": max(seen), "expected": contexts}


def _watch(seen: list[int], ended: threading.Event) -> None:
    """Note how many processes use the GPU, until `ended`."""
    while not ended.wait(0.5):
        seen.append(len(_gpu_processes().splitlines()))


def _gpu_processes() -> str:
    """The processes that use the GPU now, one per line."""
    command = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def learners(device: str) -> Found:
    """Two learners: by nccl if there are two GPUs, and by gloo on one."""
    several = device == "cuda" and torch.cuda.device_count() > 1
    for name, more in {"nccl": [], "gloo": ["device.backend=gloo"]}.items():
        if name == "nccl" and not several:
            yield name, "not run: it needs two GPUs"
            continue
        preset, settings = AGENTS["impala"]
        where = f"device.learner={device}"
        override = [*SMALL, *settings, "learners=2", "actors=2", where, *more]
        with tempfile.TemporaryDirectory() as folder:
            run = starling.train(preset, [*override, "stop.env_steps=20000", "run=a"], runs=folder)
            log = (run.folder / "log.txt").read_text()
        yield name, {"updates": run.updates, "lost": [line for line in log.splitlines() if "lost the others" in line]}


CHECKS: dict[str, Callable[[str], Found]] = {
    "agents": agents,
    "modes": modes,
    "resume": resume,
    "processes": processes,
    "learners": learners,
}


def run_check(name: str, device: str) -> Values:
    """Run one check in its own process; returns its results, and the reason if it failed."""
    command = [sys.executable, __file__, "--child", name, "--device", device]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        try:
            done = subprocess.run(
                command, stdout=printed, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False
            )
            failed = (done.stderr.strip()[-3000:] or f"exit code {done.returncode}") if done.returncode else None
        except subprocess.TimeoutExpired:
            failed = f"it took longer than {LIMIT:g} s"
        printed.seek(0)
        found = dict(json.loads(line) for line in printed if line.startswith(ANSWER) and line.endswith("\n"))
    return {"seconds": round(time.monotonic() - start, 1), **found, **({} if failed is None else {"failed": failed})}


def machine_of(device: str) -> Values:
    """The machine, its GPUs, and the versions that matter."""
    found: Values = describe("starling-rl", "torch", "numpy", "triton")
    if device == "cuda":
        found["cuda"], found["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        found["gpus"] = [
            [torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)]
            for i in range(torch.cuda.device_count())
        ]
        found["other processes"] = _gpu_processes()
    return found


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="cpu: try the script itself")
    parser.add_argument("--only", choices=CHECKS, help="one check")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "gpu-report.json", help="where to write")
    parser.add_argument("--child", choices=CHECKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check needs a GPU, and torch sees none; nothing was run", file=sys.stderr)
        return 2
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    if args.child:
        for found in CHECKS[args.child](args.device):
            print(json.dumps(found), flush=True)
        return 0
    report: Values = {"machine": machine_of(args.device), "device": args.device}
    names = [args.only] if args.only else list(CHECKS)
    for name in names:
        print(f"{name}: {(CHECKS[name].__doc__ or '').splitlines()[0]}", flush=True)
        report[name] = run_check(name, args.device)
        print(f"  {'FAILED' if 'failed' in report[name] else 'done'}", flush=True)
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(json.dumps(report, indent=1) + "\n")
    failed = [name for name in names if "failed" in report[name]]
    print(f"{args.report} is the report to send; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
