"""An environment that misbehaves: one exception that says which env, what happened and in which row."""

from __future__ import annotations

import textwrap
import traceback
from types import TracebackType

_CALLERS = (
    "starling.envs.faults",
    "starling.envs.registry",
    "starling.envs.vector",
    "starling.envs.watch",
    "gymnasium.envs.registration",
    "gymnasium.vector",
    "functools",
    "numpy",
)
"""Modules whose frames stand between us and an env, not inside it."""
_LONGEST = 300  # characters of an error's message in one line


class EnvFault(RuntimeError):  # noqa: N818 (the env's fault, whatever the error was)
    """An env raised, or gave what its spaces do not allow; `details` is the env's own traceback, where it raised.

    Not `finite`: it gave NaN or inf, as a simulation does that has become unstable, and a reset may mend it.
    """

    def __init__(self, env: str, what: str, row: int | None = None, details: str = "", finite: bool = True) -> None:
        super().__init__(env, what, row, details, finite)  # all of them, so that it can be sent to another process
        self.env, self.what, self.row, self.details, self.finite = env, what, row, details, finite

    def __str__(self) -> str:
        where = "" if self.row is None else f" (row {self.row})"
        return f"env {self.env!r} {self.what}{where}"


def raised(env: str, doing: str, error: BaseException, row: int | None) -> EnvFault:
    """`error` came out of the env while it was `doing` something: "step", "reset" or "construction"."""
    return EnvFault(env, f"raised in {doing}: {in_one_line(error)}", row, _own_traceback(error))


def in_one_line(error: BaseException) -> str:
    """An error's type and message, whatever lines the message has."""
    text = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")


def own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the env's first frame on; None where the error did not come from inside the env."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        at = at.tb_next
    return at


def _own_traceback(error: BaseException) -> str:
    return "".join(traceback.TracebackException(type(error), error, own_frames(error)).format()).rstrip()
