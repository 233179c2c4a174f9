"""Cores, memory, disk, and devices of this machine, and torch's settings for this process."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from starling.config.device import DeviceConfig
from starling.config.schema import Config
from starling.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's names
CORES = "STARLING_CORES"
DEVICES: tuple[str, ...] = ("cpu", "cuda")
"""Device types for training; torch has others, such as meta, which computes nothing."""
CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
VOLTA, AMPERE = 7, 8  # the first compute capabilities with tensor cores for float16, and for bfloat16
_GROUP_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
"""Files with limit and usage of a control group, by the controller in /proc/self/cgroup (empty: version 2)."""
BFLOAT16_TRIAL = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a)[0, 0]))"


def cores() -> int:
    """Number of cores that this process may use, or the value of the environment variable `STARLING_CORES`."""
    wanted = os.environ.get(CORES, "").strip()
    if not wanted:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UserError(f"{CORES}={wanted} is not a number of cores: set it to 1 or more, or leave it out")
    return int(wanted)


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory in bytes: of the machine, or of this process's control group if that is less."""
    if not (proc / "meminfo").exists():  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    return min([machine, *_left_in_groups((proc / "self" / "cgroup").read_text().splitlines(), groups)])


def _left_in_groups(memberships: list[str], groups: Path) -> Iterator[int]:
    """Yield the free memory of each control group of this process and of its ancestors."""
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers not in _GROUP_FILES:
            continue
        root = groups / controllers
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            left = _left(place, *_GROUP_FILES[controllers])
            if left is not None:
                yield left
            if place == root:
                break


def _left(place: Path, limit: str, used: str) -> int | None:
    """The limit minus the memory in use, without cached files, which can be reclaimed; None if there is no limit."""
    try:
        most, now = (place / limit).read_text().strip(), int((place / used).read_text())
        cached = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    cache = int(cached.get("total_inactive_file", cached.get("inactive_file", 0)))
    return int(most) - max(0, now - cache) if most.isdigit() else None


@dataclass(frozen=True)
class Room:
    """Free bytes."""

    memory: int  # private and shared: shared memory does not come from /dev/shm
    disk: int


def find_room(runs: Path) -> Room:
    """Measure what is free now for a run whose folder will be in `runs`."""
    existing = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    return Room(available_memory(), shutil.disk_usage(existing).free)


def resident_memory() -> int:
    """Resident memory of this process in bytes; 0 if the system does not report it."""
    return _status("VmRSS:")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; 0 if the system does not report it."""
    return _status("VmHWM:")


def _status(key: str) -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def device(config: Config, rank: int = 0) -> torch.device:
    """Return the device of a learner; raise `UserError` if this machine does not have it.

    Learners that several GPUs are there for take one after the other.
    """
    chosen = _here("device", config.device.learner)
    if chosen.type == "cuda" and chosen.index is None and config.learners > 1:
        return torch.device("cuda", rank % torch.cuda.device_count())
    return chosen


def actors_device(config: Config) -> torch.device:
    """The device of policies beside envs: the CPU unless asked, since a context on a GPU is large."""
    if config.runtime == "inline":
        return device(config)
    wanted = config.device.actors or _reserved(config, config.ray.actor.gpus)
    return torch.device("cpu") if wanted is None else _here("device.actors", wanted)


def evaluator_device(config: Config) -> torch.device:
    """The device of the evaluator: as of actors, but on a cluster it has its own place."""
    if config.runtime == "ray":
        return torch.device(_reserved(config, config.ray.evaluator.gpus) or "cpu")
    return actors_device(config)


def inference_device(config: Config, rank: int = 0) -> torch.device:
    """The device of the server for the actors of a learner."""
    if config.device.inference is not None and config.runtime != "inline":
        return _here("device.inference", config.device.inference)
    if config.runtime == "ray":  # perhaps on another machine than the learner
        return torch.device(_reserved(config, config.ray.inference.gpus) or "cpu")
    return device(config, rank)


def _reserved(config: Config, gpus: float) -> str | None:
    """The device of a worker for which the cluster reserves so many GPUs."""
    return "cuda" if config.runtime == "ray" and gpus > 0 else None


def check_devices(config: Config) -> None:
    """Raise `UserError` if this machine lacks a device that the run will use here."""
    if config.runtime != "ray":
        actors_device(config), inference_device(config)
    if learns_elsewhere(config):
        return
    where = device(config)
    if where.type != "cuda" or config.learners == 1 or config.device.backend == "gloo":
        return
    count, named = torch.cuda.device_count(), _known("device", config.device.learner).index is not None
    if named or config.learners > count:
        raise UserError(
            f"learners={config.learners} need a GPU each, and device={config.device.learner} is"
            f" {'one' if named else count} here: use fewer learners, or device.backend=gloo to let them share it"
        )


def learns_elsewhere(config: Config) -> bool:
    """True if the learners are on nodes of a cluster."""
    return config.runtime == "ray" and config.learners > 1 and config.ray.learner is not None


def use_device(where: torch.device, config: Config) -> None:
    """Prepare this thread to compute on a device."""
    if where.type == "cuda":
        torch.cuda.set_device(where)
        if config.precision == "tf32":
            torch.set_float32_matmul_precision("high")


def on_device_here(config: Config, warn: Callable[[str], None]) -> Config:
    """Replace a missing device by `auto`, with a warning; for runs that are only loaded, not trained."""
    wanted = config.device.learner
    lack = _lack(_known("device", wanted))
    here = config.model_copy(update={"device": DeviceConfig(learner="auto" if lack else wanted)})
    if lack:
        warn(f"device={wanted} is the run's, but {lack}: using {device(here)}")
    return here


def _here(key: str, wanted: str) -> torch.device:
    chosen = _known(key, wanted)
    if lack := _lack(chosen):
        raise UserError(f"{key}={wanted} was asked for, but {lack}; use {key}=cpu")
    return chosen


def _lack(chosen: torch.device) -> str:
    """The reason why a device cannot be used here; empty if it can."""
    if chosen.type != "cuda":
        return ""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "torch sees no GPU"
    return f"torch sees {count} GPU(s), counted from 0" if (chosen.index or 0) >= count else ""


def _known(key: str, wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"{key}={wanted} is not a device that torch knows; use auto, cpu, cuda or cuda:1") from None
    if chosen.type not in DEVICES:
        raise UserError(f"{key}={wanted} is not a device to train on; use auto, cpu, cuda or cuda:1")
    return chosen


def settle_precision(config: Config) -> Config:
    """Resolve `precision=auto` for this machine: bfloat16, float16 on older GPUs, or float32.

    A trial in a subprocess ensures that bfloat16 does not kill the process: some machines report instructions that they
    do not have.
    """
    where = device(config)
    if config.precision == "tf32" and where.type == "cpu":
        raise UserError("precision=tf32 is a mode of GPUs; use precision=float32 or precision=auto on a CPU")
    if config.precision not in ("auto", "bfloat16"):
        return config
    chosen = config.precision == "auto"
    if chosen and not _claims_bfloat16(where):
        return config.model_copy(update={"precision": "float16" if _has_float16(where) else "float32"})
    killed_by = _signal_that_ends(BFLOAT16_TRIAL) if where.type == "cpu" else None
    if killed_by is not None and not chosen:
        raise UserError(f"precision=bfloat16 does not work on this CPU ({killed_by} in a trial); use precision=float32")
    return config.model_copy(update={"precision": "bfloat16" if killed_by is None else "float32"})


def autocast_dtype(config: Config, where: torch.device) -> torch.dtype | None:
    """The lower precision of matrix products and convolutions on a device; None: all of them are float32.

    A precision that was chosen for the learner's GPU is not for actors on a CPU that has no instructions for it.
    """
    chosen = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(config.precision)
    elsewhere = where.type == "cpu" and not learns_elsewhere(config) and device(config).type != "cpu"
    return None if elsewhere and not (chosen == torch.bfloat16 and _claims_bfloat16(where)) else chosen


def _claims_bfloat16(where: torch.device) -> bool:
    if where.type == "cuda":
        return torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability(where)[0] >= AMPERE
    return where.type == "cpu" and has_bfloat16_flag(_cpu_info())


def _has_float16(where: torch.device) -> bool:
    return where.type == "cuda" and torch.cuda.get_device_capability(where)[0] >= VOLTA


def _cpu_info() -> str:
    """Return the text of /proc/cpuinfo; empty on systems other than Linux."""
    return CPU_INFO.read_text(errors="replace") if CPU_INFO.exists() else ""


def has_bfloat16_flag(cpu_info: str) -> bool:
    """Return True if the text of /proc/cpuinfo lists bfloat16 instructions (x86 or ARM) for every core."""
    lines = [line.partition(":") for line in cpu_info.splitlines()]
    cores = [set(flags.split()) for key, _, flags in lines if key.strip() in ("flags", "Features")]
    return bool(cores) and all(flags & BFLOAT16_FLAGS for flags in cores)


@cache
def _signal_that_ends(code: str) -> str | None:
    """Run `code` in a subprocess; return the signal that killed it, or None if it exited."""
    trial = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    return signal.Signals(-trial.returncode).name if trial.returncode < 0 else None


def compiles(config: Config) -> bool:
    """Return True if the loss is to be compiled; `auto` compiles if this machine can."""
    return config.compile in (True, "reduce-overhead") or (
        config.compile == "auto" and _missing_to_compile(config) is None
    )


def check_compiler(config: Config) -> None:
    """Raise `UserError` if the compilation that is asked for would fail at the first update."""
    if config.compile == "reduce-overhead" and device(config).type == "cpu":
        raise UserError("compile=reduce-overhead records CUDA graphs, which need a GPU; use compile=true on a CPU")
    missing = _missing_to_compile(config) if config.compile not in (False, "auto") else None
    if missing is not None:
        asked = "true" if config.compile is True else config.compile
        raise UserError(f"compile={asked} needs {missing}, which is missing; install it or use compile=false")


def _missing_to_compile(config: Config) -> str | None:
    if device(config).type != "cpu":
        return None if find_spec("triton") else "the package triton"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # torch's default
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler}, or another that CXX names)"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return None if headers.exists() else f"Python's headers ({headers})"


def set_up_torch(threads: int) -> None:
    """Set up this process for torch: number of threads, flushing of denormals, and an allocator that keeps memory.

    Decaying optimizer moments become denormals, with which a CPU computes many times slower.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_memory()


def keep_memory() -> None:
    """Configure glibc's allocator, if present, to keep freed memory.

    Otherwise the large arrays of every update are returned to the system and page-faulted in again by the next.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
