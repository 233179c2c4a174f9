"""Run a command beside N busy processes and exit with its exit code.

Example: python tests/load.py 8 -- .venv/bin/pytest -n 2 tests/runtime
"""

import multiprocessing
import os
import subprocess
import sys


def spin(parent: int) -> None:
    """Keep a core busy until the parent process is gone."""
    while os.getppid() == parent:
        sum(range(100_000))


def run_beside(processes: int, command: list[str]) -> int:
    """Run a command while `processes` busy processes compete with it.

    Returns:
        The exit code as a shell reports it: 128 + N if signal N ended the command.
    """
    busy = [multiprocessing.Process(target=spin, args=(os.getpid(),), daemon=True) for _ in range(processes)]
    for process in busy:
        process.start()
    try:
        code = subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.join()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if len(sys.argv) < 4 or not sys.argv[1].isdecimal() or sys.argv[2] != "--":
        sys.exit(f"usage: {sys.argv[0]} PROCESSES -- COMMAND...")
    sys.exit(run_beside(int(sys.argv[1]), sys.argv[3:]))
