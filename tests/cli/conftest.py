"""Runs a command without a process of its own, which would load everything anew."""

import sys

import pytest

from starling.cli import main


@pytest.fixture
def in_process(monkeypatch, capfd):
    """Runs one command in this process: its exit code, what it printed, what it complained of."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["starling", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capfd.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run
