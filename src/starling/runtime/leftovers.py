"""Removes what this process would leave behind if it were killed: its fork server, folders, and what uses these.

A small process waits for the end of this one, which no handler here would notice after `kill -9`. No torch here.
"""

from __future__ import annotations

import os
import sys
import threading

_PROGRAM = """
import os, shutil, signal, sys, time
os.chdir("/")
lines = sys.stdin.read().split("\\n")
servers = [line.removeprefix("server ") for line in lines if line.startswith("server ")]
folders = [line.removeprefix("folder ") for line in lines if line.startswith("folder ")]

def is_server(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.forkserver" in file.read()
    except OSError:
        return False

def users():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            files = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(file.startswith(f"{folder}/") for file in files for folder in folders):
            found.append(pid)
    return found

begun = time.monotonic()
while time.monotonic() < begun + 60:
    left = [pid for pid in servers if is_server(pid)] + users()
    for pid in left if time.monotonic() > begun + 1 else []:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    if not left:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(map(os.path.lexists, folders)):
            break
    time.sleep(0.05)
"""
"""Reads to the end of its input, which comes with the end of this process. The fork server ends by itself, unless it is
busy with an import; its workers end with it. What has files open in a folder, such as the processes of Ray, is ended
before the folder is removed."""

_lock = threading.Lock()
_to_cleaner: int | None = None  # the pipe to it
_told: set[str] = set()


def remove_folder_later(folder: str) -> None:
    """Remove a folder once this process has ended, if it is still there."""
    _tell(f"folder {folder}")


def end_server_later(pid: int) -> None:
    """End a fork server once this process has ended, if it is still there."""
    _tell(f"server {pid}")


def _tell(line: str) -> None:
    global _to_cleaner
    with _lock:
        if line in _told:
            return
        _told.add(line)
        if _to_cleaner is None:
            _to_cleaner = _start_cleaner()
        os.write(_to_cleaner, f"{line}\n".encode())


def _start_cleaner() -> int:
    reading, writing = os.pipe()
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0), *nowhere]
    os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)  # out of reach of Ctrl-C
    os.close(reading)
    return writing
