"""The `env` section of the configuration: the environment, its number, and its wrappers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from starling.config import atari_ids
from starling.config.dialect import show
from starling.config.limits import Frames, Length, Magnitude, NumEnvs, Pixels, Steps, Weight
from starling.config.parts import Arguments, Part, replaces
from starling.errors import quoted


class WrapperConfig(Part):
    """One wrapper around every single env, by name and arguments."""

    name: str = Field(
        min_length=1,
        description="class in gymnasium.wrappers, SelectObservation, HideFrames, or package.module:Class",
        json_schema_extra=replaces(args=[]),
    )
    args: Arguments = Field(default_factory=dict, description="its arguments besides the env")


def wrapper_list(wrappers: Any) -> Any:
    """Convert wrappers that are given as `{Name: {arguments}}` to a list, in the same order."""
    if not isinstance(wrappers, dict):
        return wrappers
    for name, args in wrappers.items():
        if not isinstance(args, dict | None):
            raise ValueError(f"the arguments of {quoted(name)} must be keys and values, not {show(args)}")
    return [{"name": name, "args": args or {}} for name, args in wrappers.items()]


Wrappers = Annotated[
    list[WrapperConfig],
    BeforeValidator(wrapper_list, json_schema_input_type=list[WrapperConfig] | dict[str, Any]),
]


class AtariConfig(Part):
    """Preprocessing of the ALE's own vector env; used by ids that begin with ALE/ only."""

    frame_skip: Frames = Field(4, ge=1, description="frames per action; the observation is the maximum of the last two")
    stack: Frames = Field(4, ge=1, description="frames stacked in an observation")
    size: Pixels = Field(84, ge=1, description="height and width of a frame in pixels")
    grayscale: bool = Field(True, description="gray frames; false: RGB on the last axis, 3 channels per stacked frame")
    noop_max: Length = Field(30, ge=0, description="largest random number of no-op frames at the start of a game")
    sticky: float = Field(0.0, ge=0, lt=1, description="probability that a frame repeats the previous action")
    episodic_life: bool = Field(False, description="a lost life ends the episode while the game goes on")
    fire_reset: bool = Field(False, description="press FIRE for one frame when a game starts, if it has FIRE")
    full_actions: bool = Field(False, description="all 18 actions; false: those that the game uses")
    max_frames: Steps = Field(108_000, ge=1, description="frames after which a game is truncated")


class EnvConfig(Part):
    """The environment, and the number of envs."""

    id: str = Field(
        min_length=1,
        description="Gymnasium id, ALE/..., MinAtar/..., SuperMarioBros-1-1-v0, envpool/..., toy/..., or"
        " package.module:factory (starling envs lists them); Pong, PongNoFrameskip-v4, and PongDeterministic-v4 stand"
        " for ALE/Pong-v5 with their own env.atari.sticky and env.atari.frame_skip",
    )
    num: NumEnvs = Field(8, ge=1, description="number of envs, divided among the actors")
    wrappers: Wrappers = Field(
        default_factory=list, description="wrappers, the innermost first; also as {Name: {arguments}}"
    )
    args: Arguments = Field(default_factory=dict, description="arguments of the env's constructor")
    reward_clip: Magnitude | None = Field(
        None, gt=0, description="recorded rewards are clipped to +- this; scores stay raw"
    )
    reward_weight: Weight = Field(
        1.0, ge=0, description="weight of the env's reward in the policy's objective, beside those of curiosity"
    )
    stagger: Length = Field(
        0,
        ge=0,
        description="truncate each env's first episode at a random step up to this one, so that envs are out of step",
    )
    vectorize: Literal["auto", "sync"] = Field(
        "auto", description="auto: the env's own vector version if it has one; sync: single envs, one after another"
    )
    atari: AtariConfig = Field(default_factory=AtariConfig, description="preprocessing of ALE/ ids")

    @model_validator(mode="before")
    @classmethod
    def _take_atari_id(cls, values: Any) -> Any:
        """Replace an Atari id of an earlier version, and set what it stands for unless it is set already."""
        try:
            found = atari_ids.resolve(values["id"]) if isinstance(values, dict) else None
        except (KeyError, TypeError, ValueError):  # `_is_an_atari_id_to_use` reports the last one
            return values
        if found is None:
            return values
        atari = values.get("atari", {})
        if isinstance(atari, AtariConfig):
            atari = atari.model_dump(exclude_unset=True)
        settings = {**found.settings, **atari} if isinstance(atari, dict) else atari
        return {**values, "id": found.id, **({"atari": settings} if settings else {})}

    @field_validator("id")
    @classmethod
    def _is_an_atari_id_to_use(cls, id: str) -> str:
        atari_ids.resolve(id)
        return id
