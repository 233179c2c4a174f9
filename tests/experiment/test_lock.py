"""Only one process at a time uses a run."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from starling.errors import UserError
from starling.experiment.run_folder import lock
from starling.experiment.run_folder.lock import locked


@pytest.fixture
def said():
    return []


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)


def test_run_in_use_is_rejected_with_its_user_after_a_timeout(tmp_path, said, no_waiting):
    user = f"{tmp_path} is in use by process {os.getpid()} on host {socket.gethostname()}"
    with locked(tmp_path, said.append):
        assert said == []
        with pytest.raises(UserError) as refused, locked(tmp_path, said.append):
            pass
    assert str(refused.value) == f"{user}; wait for its end, stop it, or add run=NAME to continue in a new folder"
    assert said == [f"{user}; waiting up to 0.2 s for its end"]
    with locked(tmp_path, said.append):
        assert len(said) == 1


def test_content_of_the_lock_file_does_not_lock(tmp_path, said, no_waiting):
    (tmp_path / ".lock").write_text(f"{os.getppid()} {socket.gethostname()} and a longer line of another version\n")
    with locked(tmp_path, said.append):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {socket.gethostname()}\n"
        (tmp_path / ".lock").write_text("")
        with pytest.raises(UserError, match="is in use by another process"), locked(tmp_path, said.append):
            pass


HOLDER = """
    import subprocess, sys, time
    from pathlib import Path
    from starling.experiment.run_folder.lock import locked
    with locked(Path(sys.argv[1]), print):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        print(child.pid, flush=True)
        time.sleep(60)
"""


def test_lock_of_a_killed_process_is_free_although_its_children_live(tmp_path, said, monkeypatch):
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.0)
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())
        try:
            with (
                pytest.raises(UserError, match=f"in use by process {holder.pid}"),
                locked(tmp_path, said.append),
            ):
                pass
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(child, 0)
            with locked(tmp_path, said.append):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
    assert said == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_file_system_without_locks_is_only_a_warning(tmp_path, said, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path, said.append):
        assert said == [
            f"warning: {tmp_path} cannot be locked ({os.strerror(number)}): make sure that no other process uses it"
        ]


def test_lock_that_cannot_be_taken_is_a_one_line_error(tmp_path, said, monkeypatch):
    (tmp_path / "folder" / ".lock").mkdir(parents=True)
    with (
        pytest.raises(UserError, match=r"cannot write to .*\.lock: Is a directory"),
        locked(tmp_path / "folder", print),
    ):
        pass

    def flock(descriptor, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"cannot lock .*\.lock: Input/output error"), locked(tmp_path, said.append):
        pass
