"""How much memory a million observations take in replay, and how many items a second come out of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import numpy as np

from starling.measuring.random_play import Recording, record
from starling.measuring.replay_memory import BATCH, N_STEP, ROWS, Full, measure_game, resident_memory, table_of
from starling.measuring.replay_peers import PEERS, Peer, Step, installed, transitions

GAMES = ("Pong", "Breakout", "Asterix", "Zaxxon", "WizardOfWor", "Seaquest")
MILLION = 1_000_000
RECORDED = 50_000
"""Real steps a game, and items in the replays whose speed is measured, unless fewer are asked for."""
OURS = "starling"
TURNS = 5
"""Contestants take turns, so that a busy machine is busy for all of them alike."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    games: tuple[str, ...]
    observations: int  # that the compressed replay of every game holds
    recorded: int  # real steps a game, inserted over and over until a replay is full
    items: int  # in every replay whose speed is measured, uncompressed
    seconds: float  # of measuring speed, all contestants together


@dataclass(frozen=True)
class Speed:
    """Items a second of one replay (sampled and given new priorities), and what it holds in memory."""

    items_per_s: float
    bytes_per_item: float


@dataclass(frozen=True)
class Found:
    """All that was measured."""

    games: dict[str, Full]
    observations: int
    speeds: dict[str, Speed]

    @property
    def gigabytes_per_million(self) -> dict[str, float]:
        """Resident memory a game, and the mean of all."""
        each = {game: full.resident / self.observations * MILLION / 1e9 for game, full in self.games.items()}
        return {**each, "mean": fmean(each.values())}

    @property
    def ratio_to_best_peer(self) -> float | None:
        peers = [speed.items_per_s for name, speed in self.speeds.items() if name != OURS]
        return self.speeds[OURS].items_per_s / max(peers) if peers else None

    @property
    def growth(self) -> dict[str, float]:
        """How many times longer each operation takes in the full replay than in one of 10,000 items: medians."""
        return {
            name: median(getattr(full.large, name) / getattr(full.small, name) for full in self.games.values())
            for name in ("insert", "sample", "update")
        }


def bench(setting: Setting, say: Say) -> Found:
    """Measure the speed of all contestants, then the memory of every game."""
    say(f"playing {setting.games[0]} at random for {setting.recorded:,} steps")
    speeds = _speeds(record(setting.games[0], setting.recorded, ROWS), setting, say)
    games = {}
    for game in setting.games:
        say(f"filling a replay with {setting.observations:,} observations of {game}")
        games[game] = measure_game(game, setting.observations, setting.recorded)
    return Found(games, setting.observations, speeds)


def _speeds(recording: Recording, setting: Setting, say: Say) -> dict[str, Speed]:
    builders: dict[str, Callable[[int], Step]] = {OURS: partial(_ours, recording)}
    builders |= {name: partial(_peer, PEERS[name], recording) for name in installed()}
    steps, held = {}, {}
    for name, build in builders.items():
        say(f"filling the replay of {name} with {setting.items:,} transitions")
        build(2 * BATCH)  # loads and compiles what it needs, which is not the replay's memory
        before = resident_memory()
        steps[name] = build(setting.items)
        held[name] = (resident_memory() - before) / setting.items
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            rates[name].append(BATCH * _rate(step, setting.seconds / (TURNS * len(steps))))
    return {name: Speed(median(rates[name]), held[name]) for name in steps}


def _peer(peer: Peer, recording: Recording, items: int) -> Step:
    return peer(transitions(recording, items), items, BATCH, N_STEP)


def _ours(recording: Recording, items: int) -> Step:
    table, fragments = table_of(items, "none"), recording.fragments()
    while not table.counters["overwritten"]:
        table.insert(next(fragments))
    rng = np.random.default_rng(0)

    def draw() -> object:
        sample = table.sample(BATCH)
        assert sample is not None, "the table is full"
        table.reprioritize(sample.keys, rng.random(BATCH))
        return sample

    return draw


def _rate(step: Step, seconds: float) -> float:
    """Steps a second."""
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds or count == 0:
        step()
        count += 1
    return count / passed
