"""The manifest of an exported replay: what is in it, how it was recorded, and the checksum of every file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load

from starling.config.parts import Part
from starling.errors import UserError
from starling.types import ArraySpec, NDArray

FORMAT = 1
MANIFEST = "manifest.json"


class Column(Part):
    """Shape (of one step) and dtype of a column."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.shape, np.dtype(self.dtype))


class Stack(Part):
    """Which column is a sliding stack of `n` frames along `axis` (0: the first axis of one observation)."""

    path: str
    axis: int
    n: int


class PartFile(Part):
    """One file and what must be in it."""

    file: str = Field(pattern=r"^[\w\-]+\.safetensors$")
    steps: int
    bytes: int
    sha256: str


class TableEntry(Part):
    """One table: how its items were cut and drawn, and its files in order."""

    length: int
    period: int
    prefix: int
    sampler: str
    priority_exponent: float
    items: int
    steps: int  # valid ones
    rows: int  # env rows
    parts: list[PartFile]


class Manifest(Part):
    """All that a reader must know."""

    format: int
    env: str
    observation_space: str
    action_space: str
    reward_clip: float | None
    stack: Stack | None
    columns: dict[str, Column]
    run: str
    algorithm: str
    checkpoint: str
    env_steps: int
    updates: int
    tables: dict[str, TableEntry]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an exported replay; refuses what is none, and files that are missing or cut short."""
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder that starling replay export made")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not an exported replay: it has no {MANIFEST} (starling replay export makes one)")
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        raise UserError(f"{folder / MANIFEST} is damaged or of another format than {FORMAT}; export again") from None
    if manifest.format != FORMAT:
        raise UserError(f"{folder} has format {manifest.format}, this version reads {FORMAT}; export again")
    for table in manifest.tables.values():
        for part in table.parts:
            _check_size(folder / part.file, part)
    return manifest


def _check_size(file: Path, part: PartFile) -> None:
    if not file.is_file():
        raise UserError(f"{file} is missing; copy or export the replay again")
    if file.stat().st_size != part.bytes:
        raise UserError(f"{file} has {file.stat().st_size} bytes, not {part.bytes}; copy or export the replay again")


def read_part(folder: Path, part: PartFile) -> dict[str, NDArray]:
    """The columns of one file; refused unless every byte is as it was written."""
    content = (folder / part.file).read_bytes()
    if hashlib.sha256(content).hexdigest() != part.sha256:
        raise UserError(f"{folder / part.file} was altered (its checksum differs); copy or export the replay again")
    try:
        columns: dict[str, Any] = load(content)
    except SafetensorError as error:
        raise UserError(f"{folder / part.file} cannot be read: {error}") from None
    return columns
