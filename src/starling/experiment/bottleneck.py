"""Find the bottleneck of a run from its last rows of metrics, and suggest in one line what to change."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from starling.config.schema import Config

KEY = "time/bottleneck"
"""Key of the line in a row of metrics."""
BUSY = 0.85  # a part that is busy for this share of the time is the bottleneck
WAITS = 0.25  # shorter waits are normal
ROWS = 10  # shares are means over this many rows: a learner that works in bursts is idle in most of them


class Bottleneck:
    """Find the bottleneck of a run for every row of metrics."""

    def __init__(self, config: Config) -> None:
        self._config, self._until = config, 0.0  # seconds
        self._rows = deque[tuple[float, Mapping[str, Any]]](maxlen=ROWS)  # with the seconds that each took

    def line(self, row: Mapping[str, Any]) -> str | None:
        """Add a row; returns the line for the last `ROWS` rows."""
        self._rows.append((row["time/seconds"] - self._until, row))
        self._until = row["time/seconds"]
        return bottleneck(_mean_of(self._rows), self._config)


def _mean_of(rows: Collection[tuple[float, Mapping[str, Any]]]) -> dict[str, float]:
    """Return the mean of every `time/...` number over rows, weighted by the seconds that each row took."""
    means = {}
    for key in {key for _, row in rows for key, value in row.items() if _is_timing(key, value)}:
        known = [(seconds, row[key]) for seconds, row in rows if key in row]
        whole = sum(seconds for seconds, _ in known)
        means[key] = sum(seconds * value for seconds, value in known) / whole if whole > 0 else known[-1][1]
    return means


def _is_timing(key: str, value: Any) -> bool:
    return key.startswith("time/") and isinstance(value, int | float)


PARTS = ("learner", "actors", "inference", "hub", "balance", "none")
"""What can limit a run: a part, the balance of acting and learning, or nothing clearly."""
_ONE_PROCESS = re.compile(r"one process: (\d{1,3})% learning, (\d{1,3})% acting")
_STARTS = (
    ("limited by ", "balance"),
    ("actors wait ", "inference"),
    ("hub busy ", "hub"),
    ("inference busy ", "inference"),
    ("actors busy ", "actors"),
    ("no clear limit", "none"),
)


def limiting_part(line: str) -> str:
    """Return which of `PARTS` a line of `bottleneck` names; "none" for any other text."""
    if taken := _ONE_PROCESS.match(line):
        return "learner" if int(taken[1]) >= int(taken[2]) else "actors"
    if line.startswith("learner busy "):
        return "balance" if ": balanced" in line else "learner"
    return next((part for start, part in _STARTS if line.startswith(start)), "none")


@dataclass(frozen=True)
class _Shares:
    """Shares of the time since the last row, each in [0, 1]; those of the actors are means over all actors."""

    learning: float
    reduction: float  # part of `learning`: the all-reduce of several learners
    lacks_batch: float  # the learner waits
    loading: float
    acting: float
    lacks_action: float  # an actor waits for central inference
    lacks_credit: float  # an actor, or the inference server for it, waits for a credit
    inferring: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Shares:
        def share(key: str) -> float:
            return row.get(f"time/{key}") or 0.0

        return cls(
            learning=min(1.0, share("learner/busy") + share("learner/reduction")),
            reduction=share("learner/reduction"),
            lacks_batch=share("learner/wait_in"),
            loading=share("hub/busy"),
            acting=share("actors/busy"),
            lacks_action=share("actors/wait_in"),
            lacks_credit=max(share("actors/wait_out"), share("inference/wait_out")),
            inferring=share("inference/busy"),
        )


def bottleneck(row: Mapping[str, Any], config: Config) -> str | None:
    """Return the line for a row of `time/...` shares; None before the first update or if shares are missing."""
    if row.get("updates") == 0:
        return None
    if "time/learner/busy" not in row or "time/actors/busy" not in row:
        return None
    shares = _Shares.of(row)
    if config.runtime == "inline":
        return _one_process(shares, config)
    return _saturated(shares, row, config) or _waiting(shares, row, config)


def _one_process(now: _Shares, config: Config) -> str | None:
    """Return the line for the inline runtime, in which learning and acting take turns."""
    whole = now.learning + now.acting
    if whole <= 0:
        return None
    learning, acting = now.learning / whole, now.acting / whole
    advice = "runtime=processes overlaps them"
    if learning >= BUSY:
        advice = f"{_lighter_learning(config)} would help"
    elif acting >= BUSY:
        advice = "runtime=processes with several actors, or cheaper envs, would help"
    return f"one process: {learning:.0%} learning, {acting:.0%} acting; {advice}"


def _saturated(now: _Shares, row: Mapping[str, Any], config: Config) -> str | None:
    """Return the line for a part that is always busy; None if there is none."""
    ahead = max(now.acting, now.inferring)
    if now.learning >= BUSY and ahead >= BUSY:
        part = "actors" if now.acting >= now.inferring else "inference"
        return f"{_learning(now)}, {part} busy {ahead:.0%}: balanced; only more cores would help both"
    if now.learning >= BUSY:
        return _learner(now, config)
    if now.loading >= BUSY:
        return f"hub busy {now.loading:.0%}, {_idle(now)}: smaller batches or observations would help"
    if now.inferring >= BUSY:
        return _inference(now, row)
    if now.acting >= BUSY:
        return _actors(now)
    return None


def _waiting(now: _Shares, row: Mapping[str, Any], config: Config) -> str:
    """Return the line for a run in which no part is always busy: which part waits for which."""
    if now.lacks_batch >= WAITS and now.lacks_credit >= WAITS:
        return f"limited by {_rule(config)}: {_idle(now)}, actors wait {now.lacks_credit:.0%}; both wait for each other"
    if now.lacks_action >= WAITS:
        wait = row.get("time/inference/wait_ms")
        gathers = "" if wait is None else f" and waits {wait:.1f} ms per batch"
        return (
            f"actors wait {now.lacks_action:.0%} for actions, inference busy {now.inferring:.0%}{gathers}:"
            " more actors or a shorter batching.wait_ms would help"
        )
    if now.lacks_credit >= WAITS:
        return _learner(now, config)
    if now.lacks_batch >= WAITS:
        return _actors(now)
    return f"no clear limit: {_learning(now)}, actors busy {now.acting:.0%}"


def _learner(now: _Shares, config: Config) -> str:
    return f"{_learning(now)}: more actors will not help; {_lighter_learning(config)} would"


def _learning(now: _Shares) -> str:
    """Format the busy share of the learner and, of several learners, the part that the all-reduce takes."""
    reduction = f" ({now.reduction:.0%} all-reduce)" if now.reduction > 0 else ""
    return f"learner busy {now.learning:.0%}{reduction}"


def _inference(now: _Shares, row: Mapping[str, Any]) -> str:
    num_envs = row.get("time/inference/batch")
    size = "" if num_envs is None else f" with batches of {num_envs:.0f} envs"
    return f"inference busy {now.inferring:.0%}{size}: more envs, a smaller network, or inference=local would help"


def _actors(now: _Shares) -> str:
    return f"actors busy {now.acting:.0%}, {_idle(now)}: more actors or cheaper envs would help"


def _idle(now: _Shares) -> str:
    return f"learner waits {now.lacks_batch:.0%}"


def _lighter_learning(config: Config) -> str:
    less = "a lower algo.updates_per_step" if hasattr(config.algo, "updates_per_step") else "a larger batch"
    return f"a smaller network, {less}, or more threads"


def _rule(config: Config) -> str:
    """Name the setting that makes actors and learner wait for each other."""
    for name in ("max_lag", "updates_per_step"):
        value = getattr(config.algo, name, None)
        if value is not None:
            return f"algo.{name}={value}"
    return "the balance of acting and learning"
