"""Benchmark of replay: memory per million observations, and sampled items per second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from starling.tools.benchmark.random_play import record
from starling.tools.benchmark.replay_memory import NUM_ENVS, Full, measure_game
from starling.tools.benchmark.replay_speed import OURS, Speed, compare

GAMES = ("Pong", "Breakout", "Asterix", "Zaxxon", "WizardOfWor", "Seaquest")
MILLION = 1_000_000
RECORDED = 50_000
"""Default number of real steps per game, and of items in the replays whose speed is measured."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """Settings of the benchmark."""

    games: tuple[str, ...]
    observations: int  # in the compressed replay of every game
    recorded: int  # real steps per game, inserted repeatedly until a replay is full
    items: int  # in every uncompressed replay whose speed is measured
    seconds: float  # to measure speed, for all libraries together


@dataclass(frozen=True)
class Found:
    """Results of the benchmark."""

    games: dict[str, Full]
    observations: int
    speeds: dict[str, Speed]

    @property
    def gigabytes_per_million(self) -> dict[str, float]:
        """Resident memory per million observations for each game, and their mean."""
        each = {game: full.resident / self.observations * MILLION / 1e9 for game, full in self.games.items()}
        return {**each, "mean": fmean(each.values())}

    @property
    def ratio_to_best_peer(self) -> float | None:
        """Our items per second divided by those of the fastest other library, each with its default settings."""
        return self._ratio("items_per_s")

    @property
    def ratio_where_memory_is_kept(self) -> float | None:
        """The same ratio if all processes keep freed memory, as ours do."""
        return self._ratio("kept")

    def _ratio(self, figure: str) -> float | None:
        peers = [getattr(speed, figure) for name, speed in self.speeds.items() if name != OURS]
        mine: float = getattr(self.speeds[OURS], figure)
        return mine / max(peers) if peers else None

    @property
    def growth(self) -> dict[str, float]:
        """Time of each operation in the full replay divided by that in one of 10,000 items; medians over games."""
        return {
            name: median(getattr(full.large, name) / getattr(full.small, name) for full in self.games.values())
            for name in ("insert", "sample", "update")
        }


def bench(setting: Setting, say: Say) -> Found:
    """Measure the speed of all libraries, then the memory of every game."""
    say(f"playing {setting.games[0]} at random for {setting.recorded:,} steps")
    recording = record(setting.games[0], setting.recorded, NUM_ENVS)
    speeds = compare(recording, setting.items, setting.seconds, say)
    games = {}
    for game in setting.games:
        say(f"filling a replay with {setting.observations:,} observations of {game}")
        games[game] = measure_game(game, setting.observations, setting.recorded)
    return Found(games, setting.observations, speeds)
