"""A process that must skip interpreter shutdown still exits with the code of its command."""

import subprocess
import sys

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
