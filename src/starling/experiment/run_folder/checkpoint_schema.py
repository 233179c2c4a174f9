"""Schema of a checkpoint: its manifest, and the parts of the state that no `set_state` validates."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints, ValidationError

from starling.errors import printable

NAME = re.compile(r"step-(\d{12,18})", re.ASCII)
"""Name of a checkpoint's folder: its env steps."""

Count = Annotated[int, Field(ge=0, lt=2**62)]
SegmentSize = Annotated[int, Field(ge=0, le=2**30)]
"""Bytes; segments have 4 MiB, or 32 MiB before compression, unless a single observation is larger."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PARTS = ("env", "evaluator", "incarnations", "learner", "loops", "policies", "session", "store")
"""All possible parts of a state."""
FileName = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(PARTS)})\.(json|safetensors)$")]
MOST_SEGMENTS = 100_000
"""Limit for one checkpoint; at 4 MiB each, these are 400 GB."""
_MOST_ERRORS = 100  # with more, details are not requested from pydantic, which makes one dict per error


class _Strict(BaseModel):
    """Base class without type conversion, e.g. from strings to numbers."""

    model_config = ConfigDict(strict=True, frozen=True, arbitrary_types_allowed=True)


class FileEntry(_Strict):
    """One file of a checkpoint."""

    sha256: Sha256
    bytes: Count


class CheckpointManifest(_Strict):
    """The files of a checkpoint, and its segments (name and size) by their path in the state."""

    env_steps: Count
    files: Annotated[dict[FileName, FileEntry], Field(max_length=1000)]
    segments: dict[str, Annotated[list[tuple[Sha256, SegmentSize]], FailFast()]] = {}


class _Scores(_Strict):
    episodes: Count
    totals: Annotated[list[float], Field(max_length=10_000)]
    lengths: Annotated[list[Count], Field(max_length=10_000)]


class _Session(_Strict):
    scores: _Scores
    evaluated: float | None
    rows: Count


class _Env(_Strict):
    steps: Count
    dropped: Count


class _Evaluator(_Strict):
    arms: list[Count] = []
    returns: list[float] = []
    played: Count = 0


class _Learner(_Strict):
    updates: Count
    skipped: tuple[Count, Count] = (0, 0)
    model: dict[str, torch.Tensor]


class _Store(_Strict):
    env_steps: Count
    shards: dict[str, _Store] | None = None


class _Incarnations(_Strict):
    incarnations: dict[Annotated[str, StringConstraints(pattern=r"^\d{1,9}$")], Annotated[int, Field(ge=0, lt=2**16)]]


Form = TypeVar("Form", bound=BaseModel)

_PARTS: dict[str, type[_Strict]] = {
    "session": _Session,
    "env": _Env,
    "evaluator": _Evaluator,
    "learner": _Learner,
    "store": _Store,
}


def parse_manifest(document: Any) -> CheckpointManifest:
    """Validate a manifest; raises ValueError with a one-line message if it does not match the schema."""
    segments = document.get("segments", {}) if isinstance(document, dict) else {}
    if isinstance(segments, dict) and sum(len(each) for each in segments.values() if isinstance(each, list)) > (
        MOST_SEGMENTS
    ):
        raise ValueError(f"more than {MOST_SEGMENTS:,} segments")
    return _validate(CheckpointManifest, _as_tuples(document))


def _as_tuples(document: Any) -> Any:
    """Convert the lists of JSON to the pairs that the strict schema requires."""
    segments = document.get("segments") if isinstance(document, dict) else None
    if not isinstance(segments, dict):
        return document
    pairs = {
        path: [tuple(pair) if isinstance(pair, list) else pair for pair in named] if isinstance(named, list) else named
        for path, named in segments.items()
    }
    return {**document, "segments": pairs}


def state_check(*needed: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that raises ValueError if a state lacks `needed` parts or does not match the schema."""

    def check(state: dict[str, Any]) -> None:
        if missing := [part for part in needed if part not in state]:
            raise ValueError(f"it has no part {missing[0]!r}")
        for part, form in _PARTS.items():
            if part in state:
                value = state[part]
                if part == "learner" and isinstance(value, dict) and isinstance(value.get("skipped"), list):
                    value = {**value, "skipped": tuple(value["skipped"])}
                _validate(form, value, f"{part}: ")
        if "incarnations" in state:
            _validate(_Incarnations, {"incarnations": state["incarnations"]})

    return check


def _validate(form: type[Form], value: Any, where: str = "") -> Form:
    try:
        return form.model_validate(value)
    except ValidationError as error:
        if error.error_count() > _MOST_ERRORS:
            raise ValueError(f"{where}{error.error_count():,} values of another form") from None
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(str(step) for step in first["loc"])
        raise ValueError(printable(f"{where}{path}: {first['msg']}".replace("\n", " "))) from None
