"""Sections of the configuration for algorithms and networks; does not import torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from starling.config.dialect import show
from starling.config.limits import Magnitude, Signed, Width
from starling.config.quantities import Length, Quantity
from starling.config.torch_names import (
    COUNTS,
    OPTIMIZERS,
    SCHEDULES,
    UNUSABLE_OPTIMIZERS,
    UNUSABLE_SCHEDULES,
    check_name,
    check_numbers,
)

REPLACES = "x-replaces"
"""JSON Schema key: neighbors of a key that are dropped when its value changes."""

SHORT = "x-short"
"""JSON Schema key: the key of a section that a single value stands for."""


def replaces(**neighbors: list[str]) -> dict[str, Any]:
    """JSON Schema entry: neighboring keys that belong to a field's old value, each with the inner keys to keep."""
    return {REPLACES: neighbors}


class Part(BaseModel):
    """Base class of a section of the configuration: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse booleans for numeric fields; pydantic would convert them to 1 and 0."""
        field = cls.model_fields.get(info.field_name or "")
        if field is not None and _has_boolean(value) and _takes_numbers_only(field.annotation):
            raise PydanticCustomError("bool_type", "a boolean is not a number")
        return value


def _has_boolean(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, bool) or any(isinstance(one, bool) for one in inner)


def _takes_numbers_only(annotation: Any) -> bool:
    kinds = set(_kinds(annotation))
    return not kinds.isdisjoint((int, float)) and kinds <= {int, float, str, list, dict, NoneType}


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, including those of its literals."""
    if get_origin(annotation) is Literal:
        yield from map(type, get_args(annotation))
    elif get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_args(annotation):
        yield from (kind for inner in get_args(annotation) for kind in _kinds(inner))
    else:
        yield annotation


def _finite(arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and infinities, as typed fields do, and inner keys that are not text."""
    for name, value in arguments.items():
        _check_finite(name, value)
    return arguments


def _check_finite(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value}")
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and not isinstance(key, str):
                raise ValueError(f"{name}: the key {key} must be text; put it in quotes")
            _check_finite(f"{name}.{key}", inner)


Arguments = Annotated[dict[str, Any], AfterValidator(_finite)]
"""Keyword arguments for a class that is given by name."""


class ProgressLike(Protocol):
    """The fields of `starling.Progress` that `Linear` reads; this module must not import torch, and that class does."""

    @property
    def env_steps(self) -> int: ...

    @property
    def updates(self) -> int: ...

    @property
    def fraction(self) -> float: ...


class Linear(Part):
    """A number that moves linearly from `start` to `end`, over steps, updates, or a part of the run; or constant."""

    start: Signed = Field(description="value at the beginning")
    end: Signed = Field(description="value at the end of the ramp, and after it")
    steps: Length | None = Field(
        None,
        description="length of the ramp in env steps, or with a unit, e.g. 500 updates",
        json_schema_extra=replaces(fraction=[]),
    )
    fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="length of the ramp as a share of the run: of stop.env_steps, or of stop.updates if that is null",
        json_schema_extra=replaces(steps=[]),
    )

    @model_validator(mode="before")
    @classmethod
    def _constant(cls, value: Any) -> Any:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return {"start": value, "end": value, "fraction": 1.0} if plain else value

    @model_validator(mode="after")
    def _one_length(self) -> Linear:
        if (self.steps is None) == (self.fraction is None):
            raise ValueError("give either steps or fraction")
        return self

    @property
    def over_the_run(self) -> bool:
        """True if the value depends on the length of the run."""
        return self.fraction is not None and self.start != self.end

    def at(self, progress: ProgressLike) -> float:
        """Return the value at this point of the run."""
        if isinstance(self.steps, Quantity):
            share = progress.updates / self.steps.amount
        elif self.steps is not None:
            share = progress.env_steps / self.steps
        else:
            assert self.fraction is not None
            share = progress.fraction / self.fraction
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def _check_range(value: Linear, low: float, high: float) -> Linear:
    for name in ("start", "end"):
        number = getattr(value, name)
        if not low <= number <= high:
            limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ValueError(f"{name} must be {limits}, not {number:g}")
    return value


LinearUnit = Annotated[Linear, AfterValidator(lambda value: _check_range(value, 0.0, 1.0))]
"""A `Linear` with values in the unit interval [0, 1], such as an epsilon or an exponent."""
LinearPositive = Annotated[Linear, AfterValidator(lambda value: _check_range(value, 0.0, math.inf))]
"""A `Linear` with values that are never negative."""


class ScheduleConfig(Part):
    """A learning-rate schedule of torch.optim.lr_scheduler, stepped once per update."""

    name: str = Field(
        description="class in torch.optim.lr_scheduler",
        json_schema_extra={"enum": [*SCHEDULES], **replaces(args=[])},
    )
    args: Arguments = Field(
        default_factory=dict,
        description="its arguments; lengths are in updates, or with a unit, e.g. 100000 env steps; run stands for the"
        " whole run, in env steps or, if stop.env_steps is null, in updates",
    )

    @field_validator("name")
    @classmethod
    def _is_usable(cls, name: str) -> str:
        return check_name("schedule", name, SCHEDULES, UNUSABLE_SCHEDULES)

    @field_validator("args")
    @classmethod
    def _are_numbers(cls, args: dict[str, Any]) -> dict[str, Any]:
        args = {name: _length(name, value) for name, value in args.items()}
        check_numbers({name: value for name, value in args.items() if name not in COUNTS or not _is_length(value)})
        return args

    @property
    def over_the_run(self) -> bool:
        """True if an argument stands for the length of the run."""
        return WHOLE_RUN in self.args.values()


WHOLE_RUN = "run"
"""Argument of a schedule that stands for the length of the whole run."""


def _length(name: str, value: Any) -> Any:
    """Parse an argument that counts updates: a plain number is in updates, other text has the unit env steps."""
    if isinstance(value, list):
        lengths = [_length(name, one) for one in value]
        if len({type(one) for one in lengths}) > 1:
            raise ValueError(f"{name} must be in one unit, not {show(value)}")
        return lengths
    if name not in COUNTS or not isinstance(value, str) or value == WHOLE_RUN:
        return value
    found = Quantity.parse(value, "updates")
    if found.unit not in ("updates", "env steps"):
        raise ValueError(f"{name} must be in updates or env steps, not {show(value)}")
    return found.amount if found.unit == "updates" else str(found)


def _is_length(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


class OptimizerConfig(Part):
    """An optimizer of torch.optim by name and arguments."""

    name: str = Field(
        "Adam",
        description="class in torch.optim, or RMSpropTF: RMSprop as in TensorFlow, for which papers give their settings"
        " (epsilon inside the root, mean square starting at 1)",
        json_schema_extra={"enum": [*OPTIMIZERS], **replaces(args=["lr"])},
    )
    args: Arguments = Field(default_factory=lambda: {"lr": 3e-4}, description="its arguments, e.g. lr, eps")
    clip_norm: Magnitude | None = Field(None, gt=0, description="largest global gradient norm; null: not clipped")
    schedule: ScheduleConfig | None = Field(None, description="learning-rate schedule; null: constant")

    @field_validator("name")
    @classmethod
    def _is_usable(cls, name: str) -> str:
        return check_name("optimizer", name, OPTIMIZERS, UNUSABLE_OPTIMIZERS)

    @field_validator("args")
    @classmethod
    def _are_numbers(cls, args: dict[str, Any]) -> dict[str, Any]:
        check_numbers(args)
        return args


class TorsoConfig(Part):
    """The part of a network that turns one observation into features."""

    kind: str = Field(
        "auto",
        description="mlp, nature, impala, cnn, auto (by the observation), or package.module:Class",
        examples=["auto", "mlp", "nature", "impala", "cnn"],
        json_schema_extra=replaces(hidden=[], channels=[], kernels=[], strides=[], args=[]),
    )
    hidden: list[Width] | None = Field(
        None,
        description="widths of the dense layers, for images those after the convolutions;"
        " null: mlp [64, 64], nature [512], impala [256], cnn [128]",
    )
    activation: Literal["relu", "tanh", "elu", "gelu"] = Field("relu", description="non-linearity between layers")
    norm: Literal["none", "layer", "group"] = Field("none", description="normalization after each layer")
    channels: list[Width] = Field([16, 32, 32], description="impala: channels per block; cnn: channels per layer")
    kernels: list[Width] = Field([3, 3, 3], description="cnn: kernel size per layer")
    strides: list[Width] = Field([1, 1, 1], description="cnn: stride per layer")
    args: Arguments = Field(default_factory=dict, description="arguments of your own class")


class CoreConfig(Part):
    """The recurrent part of a network."""

    kind: str = Field("none", description="none, lstm, gru, or package.module:Class", examples=["none", "lstm", "gru"])
    size: Width = Field(128, ge=1, description="width of the recurrent state")


class HeadConfig(Part):
    """The last layers of a network, which turn features into a policy, values, or Q values."""

    kind: str = Field(
        "auto",
        pattern="^auto$|:",
        description="auto: the algorithm's, or package.module:Class of your own",
        json_schema_extra=replaces(args=[]),
    )
    hidden: list[Width] | None = Field(
        None, description="widths of hidden layers before the last one; null: the algorithm's, usually none"
    )
    activation: Literal["relu", "tanh", "elu", "gelu"] = Field("relu", description="non-linearity after these layers")
    args: Arguments = Field(default_factory=dict, description="arguments of your own class")


class PreprocessingConfig(Part):
    """One transformation of observations before a torso."""

    name: str = Field(description="select, scale, or package.module:Class", json_schema_extra=replaces(args=[]))
    args: Arguments = Field(default_factory=dict, description="its arguments besides the observation space")


class NetConfig(Part):
    """The network: preprocessing, torso, core, and heads, and whether the heads share the former three.

    With `nets`, it is what the networks there leave out, and `shared` has no effect.
    """

    torso: TorsoConfig = Field(default_factory=TorsoConfig, description="observation to features")
    core: CoreConfig = Field(default_factory=CoreConfig, description="memory over time")
    shared: bool = Field(True, description="heads share torso and core; false: one of each per head")
    inputs: list[Literal["action", "reward"]] = Field(
        default_factory=list, description="further inputs of the core: the previous action, the previous rewards"
    )
    init: Literal["default", "orthogonal"] = Field("default", description="initialization of the weights")
    head: HeadConfig = Field(default_factory=HeadConfig, description="features to outputs")
    preprocessing: list[PreprocessingConfig] = Field(
        default_factory=list, description="transformations of observations before the torso, the first one first"
    )

    @property
    def recurrent(self) -> bool:
        """True if a network has a core."""
        return self.core.kind != "none"

    @property
    def has_memory(self) -> bool:
        """True if outputs depend on earlier steps: through a core, or previous actions and rewards as inputs."""
        return self.recurrent or bool(self.inputs)

    def network_of(self, name: str, stream: str) -> str:
        """The network of a reward stream: `NAME_STREAM` if it has one of its own, else `name`."""
        return name

    def trunk_of(self, network: str, head: str) -> str | None:
        """The name of the trunk (preprocessing, torso, and core) of a network's head; None: all heads share one."""
        return None if self.shared else head

    def settings_of(self, network: str) -> NetConfig:
        """The settings of one network: its own, and for what they leave out those of `net`."""
        return self

    def optimizers(self, name: str, default: OptimizerConfig) -> dict[str, OptimizerConfig]:
        """The optimizers by name: here one for all networks, called `name`, with the settings `default`."""
        return {name: default}

    def optimizer_of(self, network: str) -> str | None:
        """The name of the optimizer of a network's head; None: one optimizer has all parameters."""
        return None
