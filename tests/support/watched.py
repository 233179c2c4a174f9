"""Training that is looked at on the way, for scores that the trained agent alone does not tell."""

import time

import torch

from starling.config.load import load
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime


class Stopwatch:
    """Time since it was made: `read()` returns the `seconds` and `cpu_seconds` that the fixture `record` wants."""

    def __init__(self):
        self._started, self._cpu_started = time.monotonic(), time.process_time()

    def read(self):
        return {
            "seconds": time.monotonic() - self._started,
            "cpu_seconds": time.process_time() - self._cpu_started,
        }


def mean_over_training(preset, settings, updates, measure):
    """Train inline for so many updates and return the mean of `measure(model)` over the second half, and env steps."""
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
    """What the heads of a network say about first observations [B, ...]."""
    outputs, _ = model.step(obs, torch.ones(len(obs), dtype=torch.bool), {})
    return outputs
