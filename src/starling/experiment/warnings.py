"""Detect problems of training in the last rows of metrics, such as stale data, and suggest settings to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starling.config.curiosity import EpisodicConfig
from starling.config.dialect import on_one_line
from starling.config.env import WrapperConfig
from starling.config.schema import Config

Row = Mapping[str, Any]

KEY = "warnings"
"""Key of the warnings in a row of metrics."""
ROWS = 10  # warnings use means over this many rows, since a single row is noisy
OFF_POLICY = 0.1  # share of actions; the mean ratio is then 0.2 away from 1. Learners that keep up measure 0 to 0.05
BEHIND = 30.0  # updates; a queue of a few batches measures 1 to 15
OLD = 250_000.0  # updates; DQN's replay of a million steps, with an update every 4, is 125,000 old on average
EPISODES = 20  # with fewer finished episodes, their length is not known well enough
ENDLESS = 2_000, 100_000  # steps of every env without a finished episode: a quarter of the run, within these limits
IDLE = "steps_since_episode"
"""Key of the env steps since the last finished episode; `Watch` adds it to the rows that it keeps."""


@dataclass(frozen=True)
class Warned:
    """One warning; its kind stays the same while the numbers in its line change."""

    kind: str
    line: str


class Watch:
    """Check every row of metrics; report a warning again only after it was absent for `ROWS` rows."""

    def __init__(self, config: Config, window: int, rows: Iterable[Row] = ()) -> None:
        """`window` is the length of replayed sequences, 0 if there are none; `rows` are those of a resumed run."""
        self._config, self._window = config, window
        self._episodes, self._ended_at = 0, 0  # finished so far, and env steps at the last one
        self._rows = deque[Row](maxlen=2 * ROWS)
        for row in rows:
            self.remember(row)

    def remember(self, row: Row) -> None:
        """Add a row of a resumed run without checking it."""
        if isinstance(row.get("episodes"), int):
            self._rows.append(self._with_idle_time(row))

    def look(self, row: Row) -> tuple[list[str], list[str]]:
        """Add a row; returns the lines of all current warnings, and of those that are new."""
        self._rows.append(self._with_idle_time(row))
        rows = list(self._rows)
        now = warnings(rows, self._config, self._window)
        past = [warnings(rows[:-ago], self._config, self._window) for ago in range(1, min(ROWS, len(rows) - 1) + 1)]
        known = {warned.kind for before in past for warned in before}
        return [warned.line for warned in now], [warned.line for warned in now if warned.kind not in known]

    def _with_idle_time(self, row: Row) -> Row:
        if row["episodes"] > self._episodes:
            self._episodes, self._ended_at = row["episodes"], row["env_steps"]
        return {**row, IDLE: row["env_steps"] - self._ended_at}


def warnings(rows: Sequence[Row], config: Config, window: int) -> list[Warned]:
    """Return the warnings that hold at the last of `rows`, which are sorted oldest first; see `Watch` for `window`."""
    lines = {
        "off_policy": _off_policy(rows, config),
        "behind": _behind(rows, config),
        "old": _old(rows, config),
        "short": _short(rows, config, window),
        "unremembered": _unremembered(rows, config),
        "endless": _endless(rows, config),
        "uncompiled": _uncompiled(rows),
    }
    return [Warned(kind, line) for kind, line in lines.items() if line is not None]


def _off_policy(rows: Sequence[Row], config: Config) -> str | None:
    """Test the share `off_policy`, not `clipped`: half of all ratios exceed 1 as soon as the policy changes at all."""
    share, clipped = _mean(rows, *_new("off_policy")), _mean(rows, *_new("clipped"))
    if share is None or clipped is None or share <= OFF_POLICY:
        return None
    return (
        f"actors and learner disagree in {share:.0%} of all actions and {clipped:.0%} of importance ratios are clipped"
        f" (last {ROWS} rows): lower {_lead(config)} or the learning rate"
    )


def _behind(rows: Sequence[Row], config: Config) -> str | None:
    lag = _mean(rows, "loss/queue/lag", "learner/lag")
    if lag is None or lag <= BEHIND or not hasattr(config.algo, "max_lag"):
        return None
    return f"training data is {lag:.0f} updates old (last {ROWS} rows): lower {_lead(config)} or raise the batch"


def _old(rows: Sequence[Row], config: Config) -> str | None:
    lag, steps = _mean(rows, "learner/lag"), _mean(rows, "learner/lag_steps")
    if lag is None or steps is None or lag <= OLD or not hasattr(config.algo, "capacity"):
        return None
    return (
        f"replay is {lag:,.0f} updates or {steps:,.0f} env steps old on average (last {ROWS} rows):"
        f" lower {_named(config, 'capacity')} or {_named(config, 'updates_per_step')}"
    )


def _short(rows: Sequence[Row], config: Config, window: int) -> str | None:
    row = rows[-1]
    longest = row.get("episode_longest")
    if longest is None or row["episodes"] < EPISODES or longest >= window:
        return None
    setting = "algo.burn_in + algo.unroll" if hasattr(config.algo, "burn_in") else "algo.n_step"
    return (
        f"no episode fills a sequence of {window} steps: the last ones took"
        f" {row.get('episode_length') or 0:.0f} on average, {longest} at most; lower {setting} to at most that"
    )


def _unremembered(rows: Sequence[Row], config: Config) -> str | None:
    """Episodic novelty is 0 until an episode has as many observations as it compares each with."""
    longest = rows[-1].get("episode_longest") if rows[-1]["episodes"] >= EPISODES else None
    parts: dict[str, Any] = {"algo.episodic": getattr(config.algo, "episodic", None)}
    for i, part in enumerate(config.curiosity):
        parts |= {f"curiosity.{i}": part, f"curiosity.{i}.within": getattr(part, "within", None)}
    for key, part in parts.items():
        if isinstance(part, EpisodicConfig) and longest is not None and longest <= part.neighbours:
            return (
                f"no episode is longer than {longest} steps, so its novelty is always 0: lower {key}.neighbours"
                f" ({part.neighbours} now)"
            )
    return None


def _endless(rows: Sequence[Row], config: Config) -> str | None:
    """An env without a time limit may never end an episode under a bad policy, and then there is no score."""
    least, most = ENDLESS
    whole = config.stop.env_steps
    limit = most if whole is None else min(most, max(least, whole // (4 * config.env.num)))
    each = rows[-1].get(IDLE, 0) // config.env.num
    if each < limit:
        return None
    limited = [*config.env.wrappers, WrapperConfig(name="TimeLimit", args={"max_episode_steps": 1000})]
    wrappers = on_one_line([wrapper.model_dump(exclude_defaults=True) for wrapper in limited])
    every = config.checkpoint_every
    cuts = ""
    if config.checkpoint.exact and (every.unit != "env steps" or every.amount // config.env.num < limit):
        often = f"{int(every.amount) // config.env.num:,} steps" if every.unit == "env steps" else str(every)
        cuts = f"; checkpoint.exact cuts its episodes every {often}: raise checkpoint.every if they are longer"
    return (
        f"no episode has ended in the last {each:,} steps of each env, so there is no new score: if {config.env.id} has"
        f" no time limit, give it one, e.g. env.wrappers='{wrappers}'"
        f"{cuts}"
    )


def _uncompiled(rows: Sequence[Row]) -> str | None:
    if rows[-1].get("learner/compiled", 1.0) > 0:
        return None
    return (
        "torch cannot compile this loss as a whole, so it is computed as with compile=false"
        " (TORCH_LOGS=graph_breaks shows why)"
    )


def _new(name: str) -> tuple[str, str]:
    """Return the keys of a loss metric of new experience; replayed experience is expected to be old."""
    return f"loss/queue/{name}", f"loss/{name}"


def _mean(rows: Sequence[Row], *keys: str) -> float | None:
    """Return the mean over the last `ROWS` rows of the first of `keys` in each; None with fewer than `ROWS` values."""
    found = [next((row[key] for key in keys if key in row), None) for row in rows[-ROWS:]]
    values = [value for value in found if value is not None]
    return sum(values) / ROWS if len(values) == ROWS else None


def _lead(config: Config) -> str:
    """Name the settings that let actors run ahead of the learner, with their current values."""
    if hasattr(config.algo, "max_times_sampled"):
        return f"{_named(config, 'max_times_sampled')}, {_named(config, 'buffer')}"
    return f"{_named(config, 'max_lag')}, env.num ({config.env.num:,} now)"


def _named(config: Config, setting: str) -> str:
    value = getattr(config.algo, setting, None)
    return f"algo.{setting}" + ("" if value is None else f" ({value:,} now)")
