"""The authentication token of a Ray cluster: a file that only its owner may read or replace."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from starling.errors import UserError

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Environment variables that Ray reads."""


def token_file() -> Path:
    """The file in which Ray looks for the token."""
    return Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Create a token if there is none; raise `UserError` if others may read or replace it.

    Ray requires the token if one exists and no environment variable disables that.
    """
    if os.environ.get(MODE) != "token":
        os.environ.pop(MODE, None)
    if os.environ.get(TOKEN):
        return
    file = token_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as out:
            out.write(secrets.token_hex(32))
    check_token_file()


def check_token_file() -> None:
    """Raise `UserError` if the token is not a regular file, or if other users may read or replace it."""
    if os.environ.get(TOKEN):
        return
    file = token_file()
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    the_token = f"{file}, the token that opens the Ray cluster,"
    other = f"name another file with {PATH}"
    if stat.S_ISLNK(found.st_mode):
        raise UserError(f"{the_token} is a symbolic link, which may lead to a file of somebody else: {other}")
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{the_token} is not a plain file: {other}")
    if found.st_uid != os.geteuid():
        raise UserError(f"{the_token} belongs to another user (uid {found.st_uid}), who knows it: {other}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(f"others may read the token that opens the Ray cluster; change it with: chmod 600 {file}")
    folder = file.parent.stat().st_mode
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        raise UserError(f"everybody may replace {the_token} since its folder is open: chmod o-w {file.parent}")
