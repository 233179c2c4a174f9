"""Results of finished training runs: read, append, select, and summarize them. Does not import torch or numpy.

`FILE` is distributed with Starling; `python benchmarks/run_queue.py` adds to it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from starling.errors import UserError
from starling.experiment.run_folder import disk

FILE = Path(__file__).with_name("results.jsonl")
"""The results that are distributed with Starling."""
CURVE_POINTS = 60
"""Largest number of points of a stored learning curve."""
DEEP_SEA_EPISODES = 10_000
DEEP_SEA = f"episodes until at least 10% of all training episodes found the treasure; {DEEP_SEA_EPISODES:,}: never"
"""Protocol of deep sea, as in bsuite; benchmarks/deep_sea.py."""
_LENGTH_ONLY = {"stop", "log", "checkpoint", "eval"}
"""Sections of a configuration that affect the length and the output of a run, but not learning."""

Curve = tuple[tuple[int, FiniteFloat], ...]
"""Points (env steps, return) of a learning curve."""


@dataclass(frozen=True)
class Result:
    """One finished training run.

    Attributes:
        preset: name of the preset.
        overrides: `key=value` settings on top of it, without the seed.
        seed: seed of the run.
        env_steps: env steps that it was trained for.
        minutes: minutes of training, by the run's own clock; None: not recorded.
        score: the score, as `protocol` defines it.
        protocol: one short sentence, such as "mean return of the last 100 training episodes".
        versions: versions of Python and packages.
        machine: CPU, cores, and system, or a sentence.
        commit: commit of Starling; empty: not known.
        date: day on which it was finished, YYYY-MM-DD; empty: not known.
        curve: points (env steps, return), at most 60.
        note: anything else that a reader should know.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # read by TypeAdapter

    preset: str
    overrides: tuple[str, ...]
    seed: int
    env_steps: int
    minutes: FiniteFloat | None
    score: FiniteFloat
    protocol: str
    versions: dict[str, str]
    machine: str | dict[str, Any]
    commit: str = ""
    date: str = ""
    curve: Annotated[Curve, Field(max_length=CURVE_POINTS)] = ()
    note: str = ""

    @property
    def job(self) -> tuple[str, tuple[str, ...], int]:
        """Preset, overrides, and seed, which determine a run."""
        return self.preset, self.overrides, self.seed


@dataclass(frozen=True)
class Summary:
    """Results of one preset with the same overrides, by the same protocol, one per seed."""

    preset: str
    overrides: tuple[str, ...]
    protocol: str
    scores: tuple[float, ...]
    env_steps: int  # median
    minutes: float | None  # median of the recorded ones
    date: str  # of the latest

    @property
    def score(self) -> float:
        """Median score over seeds."""
        return statistics.median(self.scores)

    @property
    def seeds(self) -> int:
        return len(self.scores)


def read(file: Path = FILE) -> list[Result]:
    """Read all results of a file in the order in which they were appended; none if there is no file.

    Raises:
        UserError: a line is damaged; the message names it.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    return [_parse(line, f"{file} line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def append(result: Result, file: Path = FILE) -> None:
    """Append one result as a line and sync it to disk; an incomplete last line of the file stays separate."""
    line = json.dumps(asdict(result), ensure_ascii=False).encode() + b"\n"
    _parse(line, "the result to append")
    try:
        disk.append(file, line if _ends_with_newline(file) else b"\n" + line)
        disk.sync(file)
    except OSError as error:
        raise UserError(f"cannot write to {file}: {error.strerror}") from None


def select(
    results: Iterable[Result], preset: str | None = None, overrides: Sequence[str] | None = None
) -> list[Result]:
    """Return the results of `preset` with exactly these `overrides`; None matches any."""
    return [
        result
        for result in results
        if preset in (None, result.preset) and (overrides is None or tuple(overrides) == result.overrides)
    ]


def summarize(results: Iterable[Result]) -> list[Summary]:
    """Return one summary per preset, overrides, and protocol; of several results of a seed, the last one counts."""
    groups: dict[tuple[str, tuple[str, ...], str], dict[int, Result]] = {}
    for result in results:
        groups.setdefault((result.preset, result.overrides, result.protocol), {})[result.seed] = result
    return [_summary(list(by_seed.values())) for by_seed in groups.values()]


def latest(results: Iterable[Result], preset: str) -> Summary | None:
    """Return the summary of a preset without overrides; None if there are no results.

    If all results have overrides, those count whose overrides change only the length of a run, its log, checkpoints, or
    evaluations. Of several summaries, the latest counts.
    """
    mine = [summary for summary in summarize(select(results, preset)) if _learns_alike(summary.overrides)]
    return max(reversed(mine), key=lambda summary: (not summary.overrides, summary.date), default=None)


def thin(curve: Sequence[tuple[int, float]]) -> Curve:
    """Return at most `CURVE_POINTS` points of a curve, evenly spaced by index, including the first and the last."""
    if len(curve) <= CURVE_POINTS:
        return tuple(curve)
    last = len(curve) - 1
    return tuple(curve[round(i * last / (CURVE_POINTS - 1))] for i in range(CURVE_POINTS))


def _summary(results: list[Result]) -> Summary:
    first, minutes = results[0], [result.minutes for result in results if result.minutes is not None]
    return Summary(
        preset=first.preset,
        overrides=first.overrides,
        protocol=first.protocol,
        scores=tuple(result.score for result in results),
        env_steps=round(statistics.median(result.env_steps for result in results)),
        minutes=statistics.median(minutes) if minutes else None,
        date=max(result.date for result in results),
    )


def _learns_alike(overrides: Iterable[str]) -> bool:
    """Return True if no override changes how the agent learns."""
    return all(override.partition("=")[0].partition(".")[0] in _LENGTH_ONLY for override in overrides)


def _ends_with_newline(file: Path) -> bool:
    """Return True if the file ends with a newline, is empty, or does not exist."""
    if not file.exists() or not file.stat().st_size:
        return True
    with file.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        return handle.read() == b"\n"


def _parse(line: bytes, where: str) -> Result:
    try:
        return _adapter().validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
        raise UserError(f"{where} is damaged ({problem}); correct or remove it") from None


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)
