"""Types of numbers in a configuration, each with the largest sensible value and the reason for that limit.

The reason is part of the error message. Fields set their own lower limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

BECAUSE = "x-because"
"""Key of the reason for a limit in the JSON Schema."""


@dataclass(frozen=True)
class Because:
    """The reason for a limit, for error messages."""

    reason: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), BECAUSE: self.reason}


MAX_STEPS = 10**12
STEPS_REASON = "at 10,000 steps per second that many take three years"
Steps = Annotated[int, Le(MAX_STEPS), Because(STEPS_REASON)]
Capacity = Annotated[int, Le(10**12), Because("with one byte each they would take a terabyte of memory")]
NumEnvs = Annotated[int, Le(10**5), Because("each is an environment with its own state")]
BatchSize = Annotated[int, Le(10**9), Because("no memory holds a larger batch")]
Length = Annotated[int, Le(10**6), Because("no memory holds a longer sequence")]
Passes = Annotated[int, Le(1000), Because("stop conditions and signals are checked only between updates")]
Minibatches = Annotated[int, Le(10**5), Because("stop conditions and signals are checked only between updates")]
MAX_OPTIMIZER_STEPS = 10**5
"""Maximum number of optimizer steps in one update, which cannot be interrupted."""


def check_passes(epochs: int, minibatches: int) -> None:
    """Raise ValueError if one update has so many optimizer steps that stop conditions are checked too rarely."""
    if epochs * minibatches > MAX_OPTIMIZER_STEPS:
        raise ValueError(
            f"epochs={epochs} of minibatches={minibatches} are {epochs * minibatches:,} optimizer steps in one update,"
            f" more than {MAX_OPTIMIZER_STEPS:,}: stop conditions and signals are checked only between updates"
        )


Threads = Annotated[int, Le(1024), Because("more threads than cores only take turns")]
Processes = Annotated[int, Le(4096), Because("each has its own env loop or process")]
Items = Annotated[int, Le(10**5), Because("more take too much memory and time")]
Episodes = Annotated[int, Le(10**6), Because("more episodes take longer than the run itself")]
Width = Annotated[int, Gt(0), Le(10**6), Because("two layers of that width have a trillion weights")]
Pixels = Annotated[int, Ge(1), Le(4096), Because("no memory holds a batch of larger images")]
Frames = Annotated[int, Ge(1), Le(1000), Because("more frames than most episodes have")]
Weight = Annotated[float, Le(1e6), Because("a weight that large makes the other terms vanish")]
Magnitude = Annotated[float, Le(1e12), Because("float32 has seven digits, and sums of squares would overflow")]
Signed = Annotated[float, Ge(-1e12), Le(1e12), Because("float32 has seven digits, and sums of squares would overflow")]
UpdateRate = Annotated[float, Gt(0), Le(1000), Because("the envs would wait for the learner nearly all the time")]
Exponent = Annotated[float, Le(1000), Because("a power that high overflows")]
LogStd = Annotated[float, Ge(-20), Le(5), Because("the std would be 0, or far beyond the actions' range of [-1, 1]")]
Minutes = Annotated[float, Le(1e7), Because("that is 19 years")]
Seconds = Annotated[float, Le(1e6), Because("that is eleven days, and the system's timers overflow after 24")]
Resources = Annotated[float, Ge(0), Le(1e6), Because("no node has that many")]
