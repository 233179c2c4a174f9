"""Scores measured during training, which the trained agent alone does not give."""

import time

import torch

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime


class Stopwatch:
    """Measures the time since its creation: `read()` returns `seconds` and `cpu_seconds` for the fixture `record`."""

    def __init__(self):
        self._started, self._cpu_started = time.monotonic(), time.process_time()

    def read(self):
        return {
            "seconds": time.monotonic() - self._started,
            "cpu_seconds": time.process_time() - self._cpu_started,
        }


def mean_over_training(preset, settings, updates, measure):
    """Train inline; returns the mean of `measure(model)` over the second half of `updates`, and the env steps."""
    runtime = build_runtime(RunPlan.from_config(load(preset, settings)))
    values = []
    for _ in runtime.run():
        if runtime.updates >= updates:
            break
        if runtime.updates > updates // 2:
            values.append(measure(runtime.learner.model))
    runtime.close()
    return sum(values) / len(values), runtime.env_steps


@torch.no_grad()
def outputs_of(model, obs):
    """The outputs of a network's heads for first observations [B, ...]."""
    outputs, _ = model.step(obs, torch.ones(len(obs), dtype=torch.bool), {})
    return outputs
