"""The manifest of an exported replay: its content, its origin, and the checksum of every file."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from starling.config.parts import Part
from starling.errors import UserError, printable
from starling.experiment.run_folder.arrays import parse_arrays
from starling.experiment.run_folder.contents import check_contents
from starling.experiment.run_folder.disk import read_bounded
from starling.types import ArraySpec, NDArray

FORMAT = 1
MANIFEST = "manifest.json"
_MOST_BYTES = 2**24  # of a manifest

Count = Annotated[int, Field(ge=0, lt=2**62)]
Positive = Annotated[int, Field(ge=1, lt=2**62)]


def _check_dtype(name: str) -> str:
    """Raise ValueError for a dtype that is neither bool, integer, nor float."""
    try:
        is_plain = np.dtype(name).kind in "biuf"
    except TypeError:
        is_plain = False
    if not is_plain:
        raise ValueError("not a type of numbers")
    return name


class Column(Part):
    """Shape (of one step) and dtype of a column."""

    shape: Annotated[tuple[Count, ...], Field(max_length=32)]
    dtype: Annotated[str, Field(max_length=20), AfterValidator(_check_dtype)]

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape, np.dtype(self.dtype))


class Stack(Part):
    """An observation column that is a sliding stack of `n` frames along `axis` (0: first axis of one observation)."""

    path: str
    axis: Count
    n: Positive


class PartFile(Part):
    """One file, with its number of steps, size, and checksum."""

    file: str = Field(pattern=r"^[\w\-]+\.safetensors$")
    steps: Positive
    bytes: Count
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class TableEntry(Part):
    """One table: the settings of its items and its sampler, and its files in order."""

    length: Positive
    period: Positive
    burn_in: Count
    sampler: str
    priority_exponent: float
    items: Count
    steps: Count  # valid ones
    envs: Count
    parts: list[PartFile]


class Manifest(Part):
    """The content of `manifest.json`."""

    format: Count
    env: str
    observation_space: str
    action_space: str
    reward_clip: float | None
    stack: Stack | None
    columns: dict[str, Column]
    run: str
    algorithm: str
    checkpoint: str
    env_steps: Count
    updates: Count
    tables: dict[str, TableEntry]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an exported replay; raises `UserError` if it is invalid or files are missing or cut off."""
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder that starling replay export made")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not an exported replay: it has no {MANIFEST} (starling replay export makes one)")
    check_contents(folder, "an exported replay")
    try:
        manifest = Manifest.model_validate_json(read_bounded(folder / MANIFEST, _MOST_BYTES))
    except (OSError, ValidationError):
        raise UserError(f"{folder / MANIFEST} is damaged or of another format than {FORMAT}; export again") from None
    if manifest.format != FORMAT:
        raise UserError(f"{folder} has format {manifest.format}, this version reads {FORMAT}; export again")
    parts = [part for table in manifest.tables.values() for part in table.parts]
    for part in parts:
        _check_size(folder / part.file, part)
    twice = [file for file, times in Counter(part.file for part in parts).items() if times > 1]
    if twice:
        raise UserError(f"{folder / MANIFEST} names {printable(twice[0])} twice; export again")
    return manifest


def _check_size(file: Path, part: PartFile) -> None:
    if not file.is_file():
        raise UserError(f"{file} is missing; copy or export the replay again")
    if file.stat().st_size != part.bytes:
        raise UserError(f"{file} has {file.stat().st_size} bytes, not {part.bytes}; copy or export the replay again")


def read_part(folder: Path, part: PartFile) -> dict[str, NDArray]:
    """Read the columns of one file; raises `UserError` if its size or checksum differs."""
    file = folder / part.file
    try:
        content = read_bounded(file, part.bytes)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise UserError(f"{file} was altered (its checksum differs); copy or export the replay again")
    try:
        return parse_arrays(np.frombuffer(content, np.uint8))
    except ValueError as error:
        raise UserError(f"{file} cannot be read: {printable(error)}") from None
