"""Published scores with the protocol of each column, from `published.json`. Does not import torch or numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, FiniteFloat, TypeAdapter

FILE = Path(__file__).with_name("published.json")
Evaluation = Literal["training", "final", "best"]
"""Which score: of training episodes, or of an evaluation at the end, or the best evaluation."""


@dataclass(frozen=True)
class Protocol:
    """How a score was measured; None: not recorded.

    Attributes:
        noop_max: largest random number of no-op frames at the start of an episode.
        sticky: probability that a frame repeats the previous action.
        life_loss: a lost life ended a training episode.
        frames: frames of training.
        max_frames: frames after which an episode is cut off.
        evaluation: scores that count: one of them, if it is not known which.
        epsilon: probability of a random action in evaluation.
        frame_skip: frames per action.
        actions: number of actions.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # read by TypeAdapter

    noop_max: int | None
    sticky: FiniteFloat | None
    life_loss: bool | None
    frames: int | None
    max_frames: int | None
    evaluation: tuple[Evaluation, ...] | None
    epsilon: FiniteFloat | None
    frame_skip: int | None
    actions: int | None = None


@dataclass(frozen=True)
class PublishedColumn:
    """Scores of one agent, by game, and their protocol."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    source: str
    family: Literal["ALE", "MinAtar"]
    protocol: Protocol
    scores: dict[str, FiniteFloat]


@dataclass(frozen=True)
class Reference:
    """Scores of random actions and of a human, by game of the ALE."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    about: str
    random: dict[str, FiniteFloat]
    human: dict[str, FiniteFloat]

    def normalized(self, game: str, score: float) -> float | None:
        """Return the human-normalized score, (score - random) / (human - random); None for an unknown game."""
        if game not in self.random or game not in self.human:
            return None
        return (score - self.random[game]) / (self.human[game] - self.random[game])


@dataclass(frozen=True)
class Published:
    """All published scores."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    about: str
    reference: Reference
    columns: tuple[PublishedColumn, ...]

    def games(self) -> dict[str, list[str]]:
        """Return the games that have a published score, by family."""
        found: dict[str, list[str]] = {}
        for column in self.columns:
            known = found.setdefault(column.family, [])
            known += [game for game in column.scores if game not in known]
        return found


@cache
def published() -> Published:
    """Read the published scores that are distributed with Starling."""
    return TypeAdapter(Published).validate_json(FILE.read_bytes())


def game_of(env_id: str) -> tuple[str, str] | None:
    """Return family and game of an env id, ("ALE", "Pong") of ALE/Pong-v5; None for other envs."""
    family, _, rest = env_id.partition("/")
    return (family, rest.rpartition("-")[0] or rest) if family in ("ALE", "MinAtar") else None
