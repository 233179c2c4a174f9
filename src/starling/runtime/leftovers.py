"""Removes what this process would leave behind if it were killed: its fork server, and folders in the temporary folder.

A small process waits for the end of this one, which no handler here would notice after `kill -9`. No torch here.
"""

from __future__ import annotations

import subprocess
import sys
import threading

_PROGRAM = """
import os, shutil, signal, sys, time
lines = sys.stdin.read().split("\\n")
servers = [line.removeprefix("server ") for line in lines if line.startswith("server ")]
folders = [line.removeprefix("folder ") for line in lines if line.startswith("folder ")]

def is_server(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.forkserver" in file.read()
    except OSError:
        return False

begun = time.monotonic()
while time.monotonic() < begun + 60:
    servers = [pid for pid in servers if is_server(pid)]
    for pid in servers if time.monotonic() > begun + 1 else []:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    if not servers:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(map(os.path.lexists, folders)):
            break
    time.sleep(0.05)
"""
"""Reads to the end of its input, which comes with the end of this process. The fork server ends by itself, unless it is
busy with an import; its workers end with it."""

_lock = threading.Lock()
_cleaner: subprocess.Popen[str] | None = None
_told: set[str] = set()


def remove_folder_later(folder: str) -> None:
    """Remove a folder once this process has ended, if it is still there."""
    _tell(f"folder {folder}")


def end_server_later(pid: int) -> None:
    """End a fork server once this process has ended, if it is still there."""
    _tell(f"server {pid}")


def _tell(line: str) -> None:
    global _cleaner
    with _lock:
        if line in _told:
            return
        _told.add(line)
        if _cleaner is None:
            _cleaner = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd="/",
                start_new_session=True,  # a signal to our process group is not for it
            )
        assert _cleaner.stdin is not None, "it has a pipe"
        _cleaner.stdin.write(f"{line}\n")
        _cleaner.stdin.flush()
