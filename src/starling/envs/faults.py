"""`EnvFault`, the exception for faulty environments: which env, what happened, and in which copy of it."""

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
"""Modules that call an env: their frames are not part of the env's own traceback."""
_LONGEST = 300  # characters of an error's message in one line


class EnvFault(RuntimeError):  # noqa: N818 (the env is at fault, whatever the error was)
    """An env raised, or returned values that do not fit its spaces.

    Attributes:
        env: Id of the env.
        what: What happened.
        index: Index of the env in its vector env; None if unknown.
        details: The env's own traceback, if it raised.
        finite: False if it returned NaN or inf, as an unstable simulation does; a reset may fix that.
    """

    def __init__(self, env: str, what: str, index: int | None = None, details: str = "", finite: bool = True) -> None:
        super().__init__(env, what, index, details, finite)  # all arguments, so that it can be pickled
        self.env, self.what, self.index, self.details, self.finite = env, what, index, details, finite

    def __str__(self) -> str:
        where = "" if self.index is None else f" (env {self.index})"
        return f"env {self.env!r} {self.what}{where}"


def raised(env: str, doing: str, error: BaseException, index: int | None) -> EnvFault:
    """The `EnvFault` for an `error` that the env raised; `doing` is "step", "reset", or "construction"."""
    return EnvFault(env, f"raised in {doing}: {in_one_line(error)}", index, _own_traceback(error))


def in_one_line(error: BaseException) -> str:
    """Type and message of an error in one line, shortened if necessary."""
    text = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")


def own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the env's first frame on; None if the error was not raised inside the env."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        at = at.tb_next
    return at


def _own_traceback(error: BaseException) -> str:
    return "".join(traceback.TracebackException(type(error), error, own_frames(error)).format()).rstrip()
