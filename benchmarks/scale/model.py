"""What a run over a cluster of any size would do, from what each role costs an env step: arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Measured on one node; seconds of one core unless said otherwise."""

    actor_s: float  # of one actor, an env step
    driver_s: float  # of the thread that takes fragments in, deals credits and puts weights, an env step
    train_s: float  # of the learner, an env step
    step_bytes: float  # of a fragment, an env step
    weights_bytes: float
    version_steps: float  # env steps between two versions of the weights


@dataclass(frozen=True)
class Prediction:
    """Of a cluster of so many nodes."""

    nodes: int
    steps_per_s: float
    bytes_in_per_s: float  # fragments, at the driver
    bytes_out_per_s: float  # weights, from the driver, once a node and version
    bottleneck: str
    limits: dict[str, float]  # env steps a second that each part would allow


def predict(costs: Costs, nodes: int, actors: int, bandwidth: float) -> Prediction:
    """`actors` a node; `bandwidth` in bytes a second is that of the driver's line, each way."""
    weights_a_step = costs.weights_bytes * nodes / costs.version_steps
    limits = {
        "actors": nodes * actors / costs.actor_s,
        "driver": 1 / costs.driver_s,
        "learner": 1 / costs.train_s,
        "network in": bandwidth / costs.step_bytes,
        "network out": bandwidth / weights_a_step,
    }
    bottleneck = min(limits, key=lambda name: limits[name])
    speed = limits[bottleneck]
    return Prediction(nodes, speed, speed * costs.step_bytes, speed * weights_a_step, bottleneck, limits)
