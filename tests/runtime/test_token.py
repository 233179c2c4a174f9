"""The token file of a Ray cluster: whatever somebody else could have put there, read, or replaced is refused."""

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
    """A token file of this test's own."""
    monkeypatch.setenv(PATH, str(tmp_path / "ray" / "token"))
    monkeypatch.setenv(MODE, "token")
    monkeypatch.delenv(TOKEN, raising=False)
    return tmp_path / "ray" / "token"


def refused(words):
    """Both whoever starts a cluster and whoever joins one refuse the file."""
    for check in (ensure_token, check_token_file):
        with pytest.raises(UserError, match=words) as error:
            check()
        assert "\n" not in str(error.value)


def test_one_that_was_made_here_is_fine(token):
    ensure_token()
    check_token_file()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700


def test_whoever_joins_makes_none(token):
    check_token_file()
    assert not token.exists()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_is_refused_and_not_followed(token, tmp_path, dangling):
    target = tmp_path / "elsewhere"
    if not dangling:
        target.write_text("mine")
        target.chmod(0o600)
    token.parent.mkdir()
    token.symlink_to(target)
    refused("is a symbolic link")
    assert target.exists() != dangling, "nothing is made behind the link"


def test_a_fifo_or_a_folder_is_refused_without_waiting(token):
    token.parent.mkdir()
    os.mkfifo(token, 0o600)
    refused("is not a plain file")
    token.unlink()
    token.mkdir(0o700)
    refused("is not a plain file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(token):
    ensure_token()
    os.chown(token, SOMEBODY, SOMEBODY)
    refused(rf"belongs to another user \(uid {SOMEBODY}\)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_refuses_what_even_root_has_put_there(monkeypatch):
    """In a process of that user, from which the file cannot be told from its own but by its owner."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # that user comes this far
        monkeypatch.setenv(PATH, f"{folder}/token")
        ensure_token()
        code = (
            "import os; from starling.runtime.ray.token import check_token_file\n"
            f"os.setgid({SOMEBODY}); os.setuid({SOMEBODY}); check_token_file()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "belongs to another user (uid 0)" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o666])
def test_one_that_others_may_read_or_write_is_refused(token, mode):
    ensure_token()
    token.chmod(mode)
    refused("chmod 600")


def test_one_in_a_folder_in_which_everybody_may_replace_it_is_refused(token):
    ensure_token()
    token.parent.chmod(0o777)
    refused("chmod o-w")
    token.parent.chmod(0o1777)  # as /tmp: only its owner may
    check_token_file()


def test_a_token_in_the_environment_needs_no_file(token, monkeypatch):
    token.parent.mkdir()
    token.symlink_to("/nowhere")
    monkeypatch.setenv(TOKEN, "x" * 64)
    ensure_token()
    check_token_file()
    assert token_file() == token
