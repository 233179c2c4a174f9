"""Inline runs after a number of env steps, and all sequences in their only table."""

import numpy as np

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime


def build(preset, *overrides):
    return build_runtime(RunPlan.from_config(load(preset, list(overrides))))


def run(preset, steps, *overrides):
    """The runtime after `steps` env steps."""
    runtime = build(preset, *overrides)
    for _ in runtime.run():
        if runtime.env_steps >= steps:
            return runtime
    raise AssertionError


def all_sequences(runtime):
    """All stored sequences, [T, B], each once."""
    (table,) = runtime.store.mixture.tables
    return table._storage.gather(np.nonzero(table._storage._windows.steps)[0])
