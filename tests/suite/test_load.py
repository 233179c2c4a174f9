"""tests/load.py: it runs busy processes beside a command, ends all of them, and returns the command's exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "load.py"
PRINT_BUSY_PIDS = """
import os, pathlib, time
parent, ticks = os.getppid(), os.sysconf("SC_CLK_TCK")
def busy():
    pids = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [pid for pid, numbers in zip(pids, fields) if int(pid) != os.getpid() and int(numbers[11]) / ticks > 0.2]
while len(busy()) < 3:
    time.sleep(0.05)
print(*busy(), flush=True)
"""


def under_load(*command, **options):
    return subprocess.Popen([sys.executable, SCRIPT, "3", "--", *command], stdout=subprocess.PIPE, text=True, **options)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_busy_processes_run_beside_the_command_and_end_with_it():
    with under_load(sys.executable, "-c", PRINT_BUSY_PIDS + "raise SystemExit(7)") as process:
        busy = process.stdout.read().split()
    assert process.returncode == 7
    assert len(busy) == 3
    assert all(map(has_ended, busy))


def test_busy_processes_end_when_the_script_is_killed():
    with under_load(sys.executable, "-c", PRINT_BUSY_PIDS + "time.sleep(1000)", start_new_session=True) as process:
        busy = process.stdout.readline().split()
        process.kill()
        process.wait()
        try:
            while not all(map(has_ended, busy)):
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the command, which the script no longer ends
    assert len(busy) == 3


def test_command_ended_by_a_signal_gives_the_shell_exit_code():
    with under_load(sys.executable, "-c", "import os; os.kill(os.getpid(), 15)") as process:
        pass
    assert process.returncode == 128 + 15


@pytest.mark.parametrize("arguments", [[], ["8"], ["8", "--"], ["x", "--", "true"]])
def test_wrong_arguments_print_the_usage(arguments):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: ")
