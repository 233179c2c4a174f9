"""Numbers with a unit: `500 updates`, `10 episodes`, `2 min`; a plain number has the unit of its setting.

`Quantity` is the parsed value. `In` says which units a setting takes; it parses, validates, and writes them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, model_serializer
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from starling.config.limits import BECAUSE, MAX_STEPS, STEPS_REASON
from starling.errors import did_you_mean, quoted

Unit = Literal["env steps", "frames", "updates", "episodes", "minutes"]
UNITS: tuple[Unit, ...] = get_args(Unit)
_MEANT: dict[str, tuple[Unit, float]] = {
    **{word: (unit, 1.0) for unit in UNITS for word in (unit, unit.removesuffix("s"))},
    **dict.fromkeys(("env_steps", "env_step", "steps", "step"), ("env steps", 1.0)),
    **dict.fromkeys(("min", "mins"), ("minutes", 1.0)),
    **dict.fromkeys(("hours", "hour", "h"), ("minutes", 60.0)),
    **dict.fromkeys(("seconds", "second", "sec", "s"), ("minutes", 1 / 60)),
}
"""Word -> its unit and how many of that it is."""
_EXAMPLES: dict[Unit, str] = {"updates": "500 updates", "episodes": "10 episodes", "env steps": "10000 env steps"}
_FORM = re.compile(r"(?P<number>[0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*(?P<word>[A-Za-z][A-Za-z_ ]*)?")


@dataclass(frozen=True)
class Quantity:
    """An amount, above 0, of one unit; an integer unless the unit is minutes."""

    amount: int | float
    unit: Unit

    @model_serializer
    def __str__(self) -> str:
        """The form in which a configuration has it."""
        return f"{self.amount!r} {self.unit}"

    @property
    def rounded(self) -> str:
        """The amount as a reader writes it: minutes have two decimals, or two significant digits if they are few."""
        if self.unit != "minutes":
            return f"{self.amount:,}"
        return f"{round(self.amount, 2):g}" if self.amount >= 1 else f"{self.amount:.2g}"

    @classmethod
    def of(cls, value: int | Quantity, default: Unit) -> Quantity:
        """The value of a setting whose plain numbers have the unit `default`."""
        return value if isinstance(value, Quantity) else cls(value, default)

    @classmethod
    def parse(cls, text: str, default: Unit) -> Quantity:
        """Parse a number with or without a unit; raises ValueError with a message that says what to write."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"must be a number of {default}, or with a unit, e.g. 500 updates, not {quoted(text)}")
        word = " ".join((found["word"] or default).lower().split())
        if word not in _MEANT:
            raise ValueError(f"unknown unit {quoted(word)}{did_you_mean(word, UNITS)} (units: {', '.join(UNITS)})")
        unit, factor = _MEANT[word]
        number = float(found["number"].replace(",", "").replace("_", "")) * factor
        if math.isinf(number):
            raise ValueError(f"must be at most {MAX_STEPS:,} ({STEPS_REASON}), not {quoted(text)}")
        if unit == "minutes":
            return cls(number, unit)
        if number != int(number):
            raise ValueError(f"must be a whole number of {unit}, not {quoted(text)}")
        return cls(int(number), unit)


@dataclasses.dataclass(frozen=True)
class In:
    """Marks a setting in an annotation with the units that it takes; a plain number is in the first one.

    A value in that unit becomes an integer, any other a `Quantity`.
    """

    units: tuple[Unit, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            core_schema.int_schema(ge=1, le=MAX_STEPS),
            serialization=core_schema.plain_serializer_function_ser_schema(_plain),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 1, "maximum": MAX_STEPS, BECAUSE: STEPS_REASON}
        words = sorted((word for word, (unit, _) in _MEANT.items() if unit in self.units), key=len, reverse=True)
        pattern = rf"^\s*[0-9][0-9_,]*(\.[0-9]+)?([eE]\+?[0-9]+)?\s*({'|'.join(words)})?\s*$"
        examples = [_EXAMPLES[unit] for unit in self.units[1:] if unit in _EXAMPLES] or list(_EXAMPLES.values())[:1]
        return {"anyOf": [number, {"type": "string", "pattern": pattern, "examples": examples}]}

    def _validate(self, value: Any, as_integer: core_schema.ValidatorFunctionWrapHandler) -> int | Quantity:
        if isinstance(value, bool):
            raise PydanticCustomError("bool_type", "a boolean is not a number")
        if not isinstance(value, str | Quantity):
            number: int = as_integer(value)
            return number
        found = Quantity.parse(value, self.units[0]) if isinstance(value, str) else value
        if found.unit not in self.units:
            raise ValueError(f"must be in {' or '.join(self.units)}, not {quoted(str(value))}")
        if not 0 < found.amount <= MAX_STEPS:
            raise ValueError(f"must be above 0 and at most {MAX_STEPS:,} ({STEPS_REASON}), not {quoted(str(value))}")
        return int(found.amount) if found.unit == self.units[0] else found


def _plain(value: int | Quantity) -> int | str:
    return str(value) if isinstance(value, Quantity) else value


Interval = Annotated[int | Quantity, In(UNITS)]
"""Time between two events; a plain number is in env steps."""
Length = Annotated[int | Quantity, In(("env steps", "updates"))]
"""Length of a ramp; a plain number is in env steps."""
UpdateInterval = Annotated[int | Quantity, In(("updates", "env steps"))]
"""Time between two copies into a target network; a plain number is in updates."""
TARGET_EVERY = "updates between copies into the target network, or a number with a unit, e.g. 10000 env steps"
"""Description of an `UpdateInterval` for the target network."""
Updates = Annotated[int, In(("updates",))]
"""A number of updates, also written as `500 updates`."""
