"""The token that lets a driver into a Ray cluster: a file that nobody else may read or replace."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from starling.errors import UserError

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Variables of the environment that Ray reads."""


def token_file() -> Path:
    """Where Ray looks for the token."""
    return Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Have a token, made here where there is none; refuses one that others may read or replace.

    With a token there and nothing said against it, Ray asks for it.
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
    """Refuse a token file that others than this user may read or replace, and anything that is not a plain file."""
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
