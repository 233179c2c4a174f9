"""The `env` section of the configuration: the environment, its number, and its wrappers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from starling.config.limits import Frames, Length, Magnitude, NumEnvs, Pixels, Steps
from starling.config.parts import Arguments, Part, replaces


class WrapperConfig(Part):
    """One wrapper around every single env, by name and arguments."""

    name: str = Field(
        min_length=1,
        description="class in gymnasium.wrappers, or package.module:Class",
        json_schema_extra=replaces(args=[]),
    )
    args: Arguments = Field(default_factory=dict, description="its arguments besides the env")


class AtariConfig(Part):
    """Preprocessing of the ALE's own vector env; used by ids that begin with ALE/ only."""

    frame_skip: Frames = Field(
        4, ge=1, description="frames an action is held; the last two are joined by their maximum"
    )
    stack: Frames = Field(4, ge=1, description="newest frames in an observation")
    size: Pixels = Field(84, ge=1, description="height and width of a frame in pixels")
    grayscale: bool = Field(
        True, description="gray frames; false: RGB on a last axis, stacked frames become 3 channels each"
    )
    noop_max: Length = Field(30, ge=0, description="most no-op frames at the start of a game, their number is random")
    sticky: float = Field(0.0, ge=0, lt=1, description="chance that a frame repeats the previous action")
    episodic_life: bool = Field(False, description="a lost life ends the episode while the game goes on")
    fire_reset: bool = Field(False, description="press FIRE for one frame when a game starts, where there is FIRE")
    full_actions: bool = Field(False, description="all 18 actions; false: those the game knows")
    max_frames: Steps = Field(108_000, ge=1, description="frames after which a game is truncated")


class EnvConfig(Part):
    """The environment and how many rows of it run."""

    id: str = Field(
        min_length=1, description="Gymnasium id, ALE/..., MinAtar/..., envpool/..., toy/... or package.module:factory"
    )
    num: NumEnvs = Field(8, ge=1, description="env rows in all, dealt out over the actors")
    wrappers: list[WrapperConfig] = Field(default_factory=list, description="wrappers, the innermost first")
    args: Arguments = Field(default_factory=dict, description="arguments of the env's constructor")
    reward_clip: Magnitude | None = Field(
        None, gt=0, description="rewards are recorded clipped to +-this; scores stay raw"
    )
    stagger: Length = Field(
        0, ge=0, description="cut each row's first episode short within so many steps, so that rows do not play in step"
    )
    vectorize: Literal["auto", "sync"] = Field(
        "auto", description="auto: the env's own vector form where it has one; sync: single envs, one after another"
    )
    atari: AtariConfig = Field(default_factory=AtariConfig, description="preprocessing of ALE/ ids")
