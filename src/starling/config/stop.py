"""When a run ends, and the schedules that need to know; does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from starling.config.limits import Minutes, Signed, Steps
from starling.config.parts import Linear, Part, ScheduleConfig, replaces
from starling.config.quantities import UNITS, Quantity


class StopConfig(Part):
    """Conditions that end a run; the first one that is met ends it."""

    model_config = ConfigDict(populate_by_name=True)
    env_steps: Steps | None = Field(
        1_000_000,
        ge=1,
        description="env steps in total; schedules over the run count these; null: never",
        json_schema_extra=replaces(frames=[]),
    )
    frames: Steps | None = Field(
        None,
        ge=1,
        description="frames in total, in place of env_steps: a step of an env that skips frames is several",
        json_schema_extra=replaces(env_steps=[]),
    )
    updates: Steps | None = Field(
        None,
        ge=1,
        description="learner updates; schedules over the run count these if env_steps and frames are null; null: never",
    )
    episodes: Steps | None = Field(None, ge=1, description="finished episodes of all training envs; null: never")
    minutes: Minutes | None = Field(None, gt=0, description="wall-clock minutes; null: never")
    return_: Signed | None = Field(
        None, alias="return", description="mean return of the last 100 episodes; null: never"
    )

    @model_validator(mode="before")
    @classmethod
    def _frames_replace_the_default(cls, values: Any) -> Any:
        frames = isinstance(values, dict) and values.get("frames") is not None
        return {"env_steps": None, **values} if frames else values

    @field_validator("env_steps", "frames", "updates", "episodes", "minutes", mode="before")
    @classmethod
    def _in_its_unit(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept text with the unit of the key, e.g. `2 min`."""
        if not isinstance(value, str):
            return value
        unit = next(unit for unit in UNITS if unit.replace(" ", "_") == info.field_name)
        found = Quantity.parse(value, unit)
        if found.unit != unit:
            raise ValueError(f"counts {unit}; write stop.{found.unit.replace(' ', '_')}={found.amount}")
        return found.amount

    @model_validator(mode="after")
    def _ends(self) -> StopConfig:
        if self.env_steps is not None and self.frames is not None:
            raise ValueError("give either env_steps or frames; the other is null")
        if self.length is None and self.return_ is None:
            raise ValueError("nothing ends the run: set env_steps, frames, updates, episodes, minutes, or return")
        steps, episodes = self.env_steps, self.episodes
        if steps is not None and episodes is not None and episodes > steps:
            raise ValueError(
                f"episodes={episodes:,} can never be reached: env_steps={steps:,} end the run before, since an episode"
                " has at least one step; raise env_steps or set it to null"
            )
        return self

    @property
    def has_length(self) -> bool:
        """True if the length of the run is known in env steps or updates, which schedules count."""
        return (self.env_steps, self.frames, self.updates) != (None, None, None)

    @property
    def length(self) -> Quantity | None:
        """The first limit that is set: the length of the run, for progress and defaults."""
        return next(iter(self.limits), None)

    @property
    def limits(self) -> list[Quantity]:
        """The limits that are set, in the order of their units; without `return`."""
        amounts = zip(UNITS, (self.env_steps, self.frames, self.updates, self.episodes, self.minutes), strict=True)
        return [Quantity(amount, unit) for unit, amount in amounts if amount is not None]

    def part(self, n: int) -> Quantity:
        """An n-th of the run; of a million env steps if only a return ends it."""
        whole = self.length or Quantity(1_000_000, "env steps")
        return Quantity(whole.amount / n if whole.unit == "minutes" else max(1, int(whole.amount) // n), whole.unit)


def over_the_run(value: Any, key: str) -> Iterator[str]:
    """Yield the keys of all schedules in the section `value` at `key` whose length is that of the run."""
    if isinstance(value, Linear | ScheduleConfig):
        yield from [key] if value.over_the_run else []
    elif isinstance(value, Part):
        for name, field in type(value).model_fields.items():
            yield from over_the_run(getattr(value, name), f"{key}.{field.alias or name}")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from over_the_run(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from over_the_run(inner, f"{key}.{i}")
