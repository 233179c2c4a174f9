"""Atari ids of earlier Gymnasium versions, and bare names of games, as `ALE/` ids; does not import the ALE."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from starling.errors import did_you_mean, quoted

_NAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath
BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand
CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro
Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero
HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull
KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello
Pacman Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3D TimePilot Trondead
Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge
Zaxxon
"""
GAMES = frozenset(_NAMES.split())
"""Every single-player game of the ALE, as ids spell it."""

_ID = re.compile(r"(?P<game>[A-Z]\w*?)(?P<ram>-ram)?(?P<kind>Deterministic|NoFrameskip)?(-v(?P<version>\d{1,3}))?")
_OTHERS = frozenset({"Blackjack-v1"})
"""Ids of Gymnasium's own envs that look like those of a game."""
_STICKY = {"0": 0.25, "4": 0.0}
"""Probability that a frame repeats the previous action, by the version of an id."""


@dataclass(frozen=True)
class AtariId:
    """The id to use in place of another, and the settings of `env.atari` that the other one stands for."""

    id: str
    settings: dict[str, Any]


def resolve(id: str) -> AtariId | None:
    """Return what an id such as `PongNoFrameskip-v4` or `Pong` stands for; None if it is no such id.

    In `NoFrameskip` ids, which are meant for a wrapper that skips frames, `env.atari.frame_skip` is that wrapper.

    Raises:
        ValueError: The env that the id names cannot be had with `env.atari`; the message names the id to use.
    """
    found = _ID.fullmatch(id)
    if found is None or id in _OTHERS:
        return None
    game, kind, version = found["game"], found["kind"], found["version"]
    if game not in GAMES:
        if kind and version:
            raise ValueError(f"unknown Atari game {quoted(game)}{did_you_mean(game, GAMES)}")
        return None
    name = f"ALE/{game}-v5"
    if found["ram"]:
        raise ValueError(
            f"{id} observes the memory of the console: use ale_py:{name} with env.args='{{obs_type: ram}}',"
            f" or {name} for images"
        )
    if version in (None, "5") and kind is None:
        return AtariId(name, {})
    if version not in _STICKY:
        raise ValueError(f"there is no {id}: use {name}")
    sticky = _STICKY[version]
    if kind is None:
        raise ValueError(
            f"{id} repeats each action 2 to 4 times at random, which env.atari does not do: use {name}, which repeats"
            f" it env.atari.frame_skip times{', with env.atari.sticky=0.25' if sticky else ''}, or ale_py:{id} for that"
            " env without preprocessing"
        )
    if kind == "NoFrameskip":
        return AtariId(name, {"sticky": sticky})
    return AtariId(name, {"frame_skip": 3 if game == "SpaceInvaders" else 4, "sticky": sticky})
