"""How much memory and disk this machine has to give."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from starling.hardware import available_memory


@dataclass(frozen=True)
class Room:
    """Bytes that are free."""

    memory: int  # private and shared alike: shared memory is not taken from /dev/shm
    disk: int


def find_room(runs: Path) -> Room:
    """What is free now, for a run whose folder is to be in `runs`."""
    existing = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    return Room(available_memory(), shutil.disk_usage(existing).free)


def resident_memory() -> int:
    """Bytes of memory that this process has now; 0 where the system does not say."""
    return _status("VmRSS:")


def peak_memory() -> int:
    """The most that it has had at a time; 0 where the system does not say."""
    return _status("VmHWM:")


def _status(key: str) -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
