"""Exit codes: without teardown of the interpreter, and after signals during imports."""

import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import atexit, sys
from starling.process_exit import in_order, leave_at_once

atexit.register(print, "torn down")
with in_order():
    print("said", end="")
    if {immediate}:
        leave_at_once()
    sys.exit({code!r})
"""


@pytest.mark.parametrize(
    ("immediate", "code", "returncode", "output"),
    [
        (True, 0, 0, "said"),
        (True, 3, 3, "said"),
        (True, None, 0, "said"),
        (True, "in words", 1, "said"),
        (False, 3, 3, "saidtorn down\n"),
    ],
)
def test_exit_code_is_that_of_the_command(immediate, code, returncode, output):
    program = PROGRAM.format(immediate=immediate, code=code)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (returncode, output), ended.stderr


STUBBORN = """
import os, signal, sys
try:
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000):
        pass
except BaseException:
    print("caught")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_an_import_ends_the_process_whatever_the_module_catches(tmp_path, number):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    script = f"""
        import sys
        from starling.process_exit import exit_on_signals
        exit_on_signals()
        sys.path.insert(0, {str(tmp_path)!r})
        import stubborn
        print("imported")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
