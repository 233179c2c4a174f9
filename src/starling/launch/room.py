"""Free memory and disk of this machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from starling.hardware import available_memory


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
