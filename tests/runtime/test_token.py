"""The token file of a Ray cluster: a file that another user could have placed, read, or replaced is rejected."""

import os
import stat
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from starling.errors import UserError
from starling.runtime.ray.token import MODE, PATH, TOKEN, check_token_file, ensure_token, token_file

SOMEBODY = 65534


@pytest.fixture(autouse=True)
def token(tmp_path, monkeypatch):
    """A token file for this test."""
    monkeypatch.setenv(PATH, str(tmp_path / "ray" / "token"))
    monkeypatch.setenv(MODE, "token")
    monkeypatch.delenv(TOKEN, raising=False)
    return tmp_path / "ray" / "token"


def assert_rejected(message):
    """Check that both starting and joining a cluster reject the file."""
    for check in (ensure_token, check_token_file):
        with pytest.raises(UserError, match=message) as error:
            check()
        assert "\n" not in str(error.value)


def test_token_created_here_is_accepted(token):
    ensure_token()
    check_token_file()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700


def test_joining_creates_no_token(token):
    check_token_file()
    assert not token.exists()


@pytest.mark.parametrize("dangling", [False, True])
def test_symbolic_link_is_rejected_and_not_followed(token, tmp_path, dangling):
    target = tmp_path / "elsewhere"
    if not dangling:
        target.write_text("mine")
        target.chmod(0o600)
    token.parent.mkdir()
    token.symlink_to(target)
    assert_rejected("is a symbolic link")
    assert target.exists() != dangling, "nothing is made behind the link"


def test_fifo_or_folder_is_rejected_without_blocking(token):
    token.parent.mkdir()
    os.mkfifo(token, 0o600)
    assert_rejected("is not a plain file")
    token.unlink()
    token.mkdir(0o700)
    assert_rejected("is not a plain file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_rejected(token):
    ensure_token()
    os.chown(token, SOMEBODY, SOMEBODY)
    assert_rejected(rf"belongs to another user \(uid {SOMEBODY}\)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_file_of_root_is_rejected_by_other_users(monkeypatch):
    """In a process of another user, for whom only the owner distinguishes the file from its own."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # so that the user can reach the file
        monkeypatch.setenv(PATH, f"{folder}/token")
        ensure_token()
        code = (
            "import os; from starling.runtime.ray.token import check_token_file\n"
            f"os.setgid({SOMEBODY}); os.setuid({SOMEBODY}); check_token_file()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "belongs to another user (uid 0)" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o666])
def test_file_that_others_may_read_or_write_is_rejected(token, mode):
    ensure_token()
    token.chmod(mode)
    assert_rejected("chmod 600")


def test_file_in_a_folder_where_others_may_replace_it_is_rejected(token):
    ensure_token()
    token.parent.chmod(0o777)
    assert_rejected("chmod o-w")
    token.parent.chmod(0o1777)  # like /tmp: only the owner may replace a file
    check_token_file()


def test_token_in_the_environment_needs_no_file(token, monkeypatch):
    token.parent.mkdir()
    token.symlink_to("/nowhere")
    monkeypatch.setenv(TOKEN, "x" * 64)
    ensure_token()
    check_token_file()
    assert token_file() == token
