"""Trust in run folders: one may import code only if the user made it, as a seal proves, or allows it by name.

The seal is an HMAC of the configuration's import paths, made with the user's private key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starling.config.imports import Import, clusters_of, imports_of
from starling.errors import UserError
from starling.experiment.run_folder.disk import publish

ALLOW = "STARLING_ALLOW"
"""Environment variable with packages that any run folder may import, separated by commas."""
SEAL = "trust.json"
KEY_BYTES = 32
_LONGEST_SEAL = 1000  # bytes
_SHOWN = 8  # import paths in a message
_SHOWN_LENGTH = 100  # characters of each


class ForeignCodeError(UserError):
    """A run folder would import code, or join a cluster, that the user has not allowed."""


class NoKeyError(Exception):
    """The user's key cannot be read or created; the message gives the reason."""


def allowed(allow: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the packages that the user allows: `allow`, and those of the environment variable."""
    given = [word.strip() for word in os.environ.get(ALLOW, "").split(",")]
    return tuple(word for word in (*allow, *given) if word)


def check(folder: Path, values: Any, allow: Sequence[str] = ()) -> None:
    """Raise `ForeignCodeError` if the configuration `values` of a run in `folder` imports code that is not allowed.

    Nothing is imported here. A folder with the user's own seal needs no permission, and neither does one without
    imports.
    """
    foreign, reason = _foreign_imports(folder, values, allow)
    if foreign:
        raise ForeignCodeError(_refusal(folder, reason, "import", foreign))


def check_cluster(folder: Path, values: Any, allow: Sequence[str] = (), typed: Collection[str] = ()) -> None:
    """Raise `ForeignCodeError` if training with `values` would join a cluster that the user has not named.

    Args:
        typed: Dotted keys that the user has set on top of `values`.
    """
    foreign, reason = _foreign_clusters(folder, values, allow, typed)
    if foreign:
        raise ForeignCodeError(_refusal(folder, reason, "join", foreign))


def options(folder: Path, values: Any, *, joins: bool) -> str:
    """Return the options `--allow PACKAGE` that a command on the run in `folder` needs; empty for the user's own run.

    Args:
        joins: True if the command trains in the cluster that the run names, as `resume` does.
    """
    foreign = _foreign_imports(folder, values)[0] + (_foreign_clusters(folder, values)[0] if joins else [])
    return f"--allow {_join(each.word for each in foreign)}" if foreign else ""


def seal(folder: Path, values: Any, *, cluster: bool = True) -> str | None:
    """Write the seal of a new run, if it needs one; returns the problem if that is not possible, else None.

    Args:
        cluster: False if the user has not allowed the cluster that `values` name: the seal leaves it out.
    """
    found = {"imports": imports_of(values)} | ({"cluster": clusters_of(values)} if cluster else {})
    if not any(found.values()):
        return None
    try:
        key = _make_key()
    except NoKeyError as error:
        words = _join([each.word for part in found.values() for each in part])
        return f"the run cannot be marked as yours ({error}): resume, eval and play will need --allow {words}"
    digests = {part: _digest(key, part, listed) for part, listed in found.items()}
    publish(folder / SEAL, (json.dumps({"version": 1, **digests}) + "\n").encode())
    return None


def key_file() -> Path:
    """Return the path of the user's key; raises `NoKeyError` if there is no home folder."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given if os.path.isabs(given) else os.path.expanduser("~/.config"))
    if not base.is_absolute():
        raise NoKeyError("there is no home folder; set HOME or XDG_CONFIG_HOME")
    return base / "starling" / "key"


def _foreign_imports(folder: Path, values: Any, allow: Sequence[str] = ()) -> tuple[list[Import], str]:
    """Return the imports in `values` that are not allowed, and why the folder's seal does not cover them."""
    found, words = imports_of(values), allowed(allow)
    foreign = [each for each in found if not each.is_allowed(words)]
    reason = _reason_for_distrust(folder, "imports", found) if foreign else None
    return ([], "") if reason is None else (foreign, reason)


def _foreign_clusters(
    folder: Path, values: Any, allow: Sequence[str] = (), typed: Collection[str] = ()
) -> tuple[list[Import], str]:
    """Like `_foreign_imports`, for the cluster that `values` name; `typed` are keys that the user has set."""
    found, words = clusters_of(values), allowed(allow)
    foreign = [each for each in found if each.path not in words and not {each.key, "ray"} & set(typed)]
    reason = _reason_for_distrust(folder, "cluster", found) if foreign else None
    return ([], "") if reason is None else (foreign, reason)


def _reason_for_distrust(folder: Path, part: str, found: Sequence[Import]) -> str | None:
    """Return the reason why one part of the folder's seal does not cover `found`; None if it does."""
    try:
        digest = _read_seal(folder / SEAL, part)
    except FileNotFoundError:
        return f"it has no {SEAL}"
    except KeyError:
        return f"its {SEAL} does not cover that"
    except (OSError, ValueError, RecursionError):
        return f"its {SEAL} is damaged"
    try:
        key = _read_key(key_file())
    except FileNotFoundError:
        return "you have no key here yet"
    except NoKeyError as error:
        return str(error)
    if hmac.compare_digest(_digest(key, part, found), digest):
        return None
    return f"its {SEAL} was made with another key or for another config.yaml"


def _digest(key: bytes, part: str, found: Sequence[Import]) -> str:
    sealed = ["starling", 1, part, sorted({each.path for each in found})]
    return hmac.new(key, json.dumps(sealed).encode(), hashlib.sha256).hexdigest()


def _read_seal(file: Path, part: str) -> str:
    content = json.loads(_read_regular(file, _LONGEST_SEAL)[0])
    digest = content[part] if isinstance(content, dict) else None
    if not isinstance(digest, str) or not digest.isascii():
        raise ValueError(f"no digest in {file}")
    return digest


def _read_regular(file: Path, longest: int) -> tuple[bytes, os.stat_result]:
    """Return content and status of a regular file; raises for a symlink, another kind of file, or a longer file."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > longest:
            raise ValueError(f"{file} is not a regular file of at most {longest} bytes")
        return os.read(descriptor, longest), about
    finally:
        os.close(descriptor)


def _read_key(file: Path) -> bytes:
    """Read the user's key; raises `FileNotFoundError` if there is none, `NoKeyError` if it cannot be used."""
    try:
        key, about = _read_regular(file, KEY_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        if file.is_symlink():
            raise NoKeyError(f"{file} is a symlink; replace it by the file that it points to") from None
        raise NoKeyError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise NoKeyError(f"{file} is not a key; remove it") from None
    if about.st_uid != os.geteuid():
        raise NoKeyError(f"{file} belongs to another user")
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise NoKeyError(f"others may read {file}; change it with: chmod 600 {shlex.quote(str(file))}")
    if len(key) != KEY_BYTES:
        raise NoKeyError(f"{file} is not a key; remove it")
    return key


def _make_key() -> bytes:
    """Return the user's key, created if there is none; processes that do this at the same time get the same key."""
    file = key_file()
    with suppress(FileNotFoundError):
        return _read_key(file)
    partial = file.with_name(f".key-{secrets.token_hex(8)}")
    try:
        file.parent.parent.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as out:
                out.write(os.urandom(KEY_BYTES))
                out.flush()
                os.fsync(out.fileno())
            with suppress(FileExistsError):
                os.link(partial, file)  # atomic, and never replaces a key
        finally:
            os.unlink(partial)
        return _read_key(file)
    except OSError as error:
        raise NoKeyError(f"cannot write {file}: {error.strerror}") from None


def _refusal(folder: Path, reason: str, does: str, foreign: Sequence[Import]) -> str:
    listed = foreign[:_SHOWN]
    shown = ", ".join(f"{_plain(each.path)} ({_plain(each.key)})" for each in listed)
    more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
    words = dict.fromkeys(each.word for each in listed)
    return (
        f"{folder} is not known as a run of yours ({reason}), and its configuration would {does} {shown}{more}; nothing"
        f" was done: if you trust that, add --allow {_join(words)} (in Python allow=[...]) or set"
        f" {ALLOW}={','.join(shlex.quote(_plain(word)) for word in words)}"
    )


def _join(words: Iterable[str]) -> str:
    return " --allow ".join(shlex.quote(_plain(word)) for word in dict.fromkeys(words))


def _plain(text: str) -> str:
    """Return untrusted text as printable ASCII of bounded length."""
    cut = text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
    return cut.encode("unicode_escape").decode()
