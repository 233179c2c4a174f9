"""Dump of a run whose training diverged: the last batch and its gradient norms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from starling.experiment.run_folder.arrays import write_arrays
from starling.experiment.run_folder.disk import write_synced
from starling.types import NDArray


def write_dump(
    folder: Path, *, reason: str, env_steps: int, updates: int, norms: Mapping[str, float], batch: Mapping[str, NDArray]
) -> None:
    """Write `report.json` and, if the batch is known, `batch.safetensors` into `folder`."""
    folder.mkdir(exist_ok=True)
    non_finite = {name: int(np.size(array) - np.isfinite(array).sum()) for name, array in batch.items()}
    report = {
        "reason": reason,
        "env_steps": env_steps,
        "updates": updates,
        "gradient_norms": {name: str(norm) for name, norm in norms.items()},  # JSON has no NaN
        "non_finite_in_batch": {name: count for name, count in non_finite.items() if count},
        "settings": "../config.yaml",
    }
    write_synced(folder / "report.json", json.dumps(report, indent=1).encode())
    if batch:
        write_arrays(folder / "batch.safetensors", {name: np.ascontiguousarray(a) for name, a in batch.items()})
