"""How much memory and disk this machine has to give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
"""Limit and use of a control group, by the controller that its line in /proc/self/cgroup names (none: version 2)."""


@dataclass(frozen=True)
class Room:
    """Bytes that are free."""

    memory: int  # private and shared alike: shared memory is not taken from /dev/shm
    disk: int


def find_room(runs: Path) -> Room:
    """What is free now, for a run whose folder is to be in `runs`."""
    existing = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    return Room(available_memory(), shutil.disk_usage(existing).free)


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """What the machine has left, or the control group that this process is in, if that is less."""
    if not (proc / "meminfo").exists():  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    return min([machine, *_left_in_groups((proc / "self" / "cgroup").read_text().splitlines(), groups)])


def _left_in_groups(memberships: list[str], groups: Path) -> Iterator[int]:
    """What each control group that this process is in, and each above it, has left."""
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if controllers not in _FILES:
            continue
        root = groups / controllers
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            left = _left(place, *_FILES[controllers])
            if left is not None:
                yield left
            if place == root:
                break


def _left(place: Path, limit: str, used: str) -> int | None:
    """The limit less what is in use and cannot be given back (files that are only cached can); None: no limit."""
    try:
        most, now = (place / limit).read_text().strip(), int((place / used).read_text())
        cached = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    cache = int(cached.get("total_inactive_file", cached.get("inactive_file", 0)))
    return int(most) - max(0, now - cache) if most.isdigit() else None


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
