"""The token that lets a driver into a Ray cluster: a file that nobody else may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from starling.errors import UserError

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Variables of the environment that Ray reads."""


def token_file() -> Path:
    """Where Ray looks for the token."""
    return Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Have a token, made here where there is none; refuses one that others may read.

    With a token there and nothing said against it, Ray asks for it.
    """
    if os.environ.get(MODE) != "token":
        os.environ.pop(MODE, None)
    if os.environ.get(TOKEN):
        return
    file = token_file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_hex(32))
    check_token_file()


def check_token_file() -> None:
    """Refuse a token file that others than its owner may read."""
    file = token_file()
    if not os.environ.get(TOKEN) and file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise UserError(f"others may read the token that opens the Ray cluster; change it with: chmod 600 {file}")
