"""Inline systems that have lived for a while, and what their one table holds."""

import numpy as np

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime


def build(preset, *overrides):
    return build_runtime(RunPlan.from_config(load(preset, list(overrides))))


def run(preset, steps, *overrides):
    """The system after so many env steps."""
    runtime = build(preset, *overrides)
    for _ in runtime.run():
        if runtime.env_steps >= steps:
            return runtime
    raise AssertionError


def windows(runtime):
    """Every window there is, [T, B] once each."""
    (table,) = runtime.store.mixture.tables
    return table._storage.gather(np.nonzero(table._storage._windows.steps)[0])
