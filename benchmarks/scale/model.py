"""Predicted speed of a run on a cluster of any size, computed from the cost of each role per env step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Measured on one node; in seconds of one core unless said otherwise."""

    actor_s: float  # of one actor, per env step
    driver_s: float  # of the thread that handles fragments, credits, and weights, per env step
    train_s: float  # of the learner, per env step
    step_bytes: float  # of a fragment, per env step
    weights_bytes: float
    version_steps: float  # env steps between two versions of the weights


@dataclass(frozen=True)
class Prediction:
    """For a cluster with this number of nodes."""

    nodes: int
    steps_per_s: float
    bytes_in_per_s: float  # fragments, at the driver
    bytes_out_per_s: float  # weights, from the driver, once per node and version
    bottleneck: str
    limits: dict[str, float]  # env steps per second that each part would allow


def predict(costs: Costs, nodes: int, actors: int, bandwidth: float) -> Prediction:
    """Predict the speed for `actors` per node and a `bandwidth` in bytes per second at the driver, each way."""
    weights_per_step = costs.weights_bytes * nodes / costs.version_steps
    limits = {
        "actors": nodes * actors / costs.actor_s,
        "driver": 1 / costs.driver_s,
        "learner": 1 / costs.train_s,
        "network in": bandwidth / costs.step_bytes,
        "network out": bandwidth / weights_per_step,
    }
    bottleneck = min(limits, key=lambda name: limits[name])
    speed = limits[bottleneck]
    return Prediction(nodes, speed, speed * costs.step_bytes, speed * weights_per_step, bottleneck, limits)
