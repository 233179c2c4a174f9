"""Sort runs: one group per environment, and in each one series per configuration, whose runs differ in the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starling.config.load import differences
from starling.errors import cut
from starling.tools.report.runs import Run

OUTPUT_ONLY = ("run", "seed", "log", "checkpoint")
"""Settings that two runs of one series may differ in: the seed, and what does not change learning."""
_SAME_SCORE = ("num", "stagger", "reward_clip", "vectorize")
_SAME_SCORE_ATARI = ("stack", "size", "grayscale", "episodic_life")
"""Settings of the env after which a score still means the same."""
_LABEL_SETTINGS = 3
_LONGEST_LABEL, _LONGEST_TITLE = 80, 160


@dataclass(frozen=True, eq=False)
class Series:
    """Runs of one configuration; `label` says how it differs from the other series of its group."""

    label: str
    runs: tuple[Run, ...]

    @property
    def independent(self) -> tuple[Run, ...]:
        """Return the first run of every seed: two runs with the same seed are not two samples."""
        seeds: dict[str, Run] = {}
        for run in self.runs:
            seeds.setdefault(_canonical(run.seed), run)
        return tuple(seeds.values())


@dataclass(frozen=True)
class Group:
    """Runs of one environment, whose scores can be compared."""

    title: str
    series: tuple[Series, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for series in self.series for run in series.runs)


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Sort runs into groups and series, both in the order in which they were named."""
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(_canonical(_env_of(run)), []).append(run)
    titles = _titles([members[0] for members in by_env.values()])
    return [Group(title, _series(members)) for title, members in zip(titles, by_env.values(), strict=True)]


def setting_differences(runs: Iterable[Run]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, with the value of each run."""
    kept = [_without(run.settings, ("run",)) for run in runs]
    keys = dict.fromkeys(key for other in kept[1:] for key, _ in differences(kept[0], other))
    return {key: [_at(settings, key) for settings in kept] for key in keys}


def _env_of(run: Run) -> dict[str, Any]:
    """Return the settings of an env that give its score a meaning."""
    env = dict(run.settings["env"])
    atari = env.pop("atari", None)
    kept: dict[str, Any] = _without(env, _SAME_SCORE)
    if str(env.get("id", "")).startswith("ALE/") and isinstance(atari, Mapping):
        kept["atari"] = _without(atari, _SAME_SCORE_ATARI)
    return kept


def _titles(firsts: list[Run]) -> list[str]:
    """Return the env id of each group, with the settings that tell groups of the same id apart."""
    titles = []
    for run in firsts:
        others = [other for other in firsts if other is not run and other.env == run.env]
        mine = _env_of(run)
        keys = dict.fromkeys(key for other in others for key, _ in differences(mine, _env_of(other)))
        told = [f"{key}={_shown(_at(mine, key))}" for key in keys]
        titles.append(cut(f"{run.env} ({', '.join(told)})" if told else run.env, _LONGEST_TITLE))
    return titles


def _series(runs: list[Run]) -> tuple[Series, ...]:
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        by_config.setdefault(_canonical(_without(run.settings, OUTPUT_ONLY)), []).append(run)
    members = list(by_config.values())
    return tuple(Series(label, tuple(each)) for label, each in zip(_labels(members), members, strict=True))


def _labels(members: list[list[Run]]) -> list[str]:
    """Return a label per series: the algorithm, then the settings that differ among those with this algorithm."""
    labels: list[str] = []
    for runs in members:
        mine = _without(runs[0].settings, OUTPUT_ONLY)
        alike = [each[0] for each in members if each is not runs and each[0].algorithm == runs[0].algorithm]
        keys = dict.fromkeys(
            key for other in alike for key, _ in differences(mine, _without(other.settings, OUTPUT_ONLY))
        )
        told = [f"{key}={_shown(_at(mine, key))}" for key in list(keys)[:_LABEL_SETTINGS]]
        label = cut(" ".join([runs[0].algorithm, *told]), _LONGEST_LABEL)
        if len(keys) > _LABEL_SETTINGS or label in labels:
            label = f"{runs[0].algorithm} ({runs[0].name})"
        labels.append(label if label not in labels else f"{label} #{len(labels) + 1}")
    return labels


def _without(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    dropped = set(keys)
    return {key: value for key, value in values.items() if key not in dropped}


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return "(none)"
        values = values[part]
    return values


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else _canonical(value), 30)


def _canonical(value: Any) -> str:
    """Return the same text for the same plain data; what YAML adds to JSON, such as dates, is written as text."""
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except TypeError:  # a key that JSON does not have, in a configuration that is not valid
        return repr(value)
