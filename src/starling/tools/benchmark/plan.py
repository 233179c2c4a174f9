"""Predict the memory and disk that a run needs and, from a short measurement, its duration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from starling.hardware import Room, find_room
from starling.launch.fitting import refuse
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.launch.sizes import MAIN, Sizes, predict_sizes
from starling.tools.benchmark.costs import Costs, measure


@dataclass(frozen=True)
class Plan:
    """Prediction for a run that fits: required and available resources, costs of a step, speed, and duration."""

    sizes: Sizes
    room: Room
    costs: Costs
    parameters: int  # of all networks
    trained: dict[str, int]  # parameters by optimizer
    steps_per_s: float
    seconds: float  # infinite if nothing tells the length of the run


def plan(run_plan: RunPlan, runs: Path, seconds: float) -> Plan:
    """Predict a run from a measurement of about `seconds`; raises `UserError`, early if possible, if it cannot fit."""
    model = build_model(run_plan)
    sizes, room = predict_sizes(run_plan, model, layout_of(run_plan, model)), find_room(runs)
    refuse(run_plan, sizes, room)
    costs = measure(run_plan, seconds)
    sizes = replace(sizes, programs=sizes.programs + max(0, costs.peak - MAIN - sizes.learning - sizes.batches))
    refuse(run_plan, sizes, room)
    speed = predict_speed(run_plan, costs)
    longest, steps = run_plan.config.stop.minutes, run_plan.expected_env_steps
    whole = math.inf if steps is None else steps / speed
    optimizers = run_plan.algorithm.learning().optimizers
    return Plan(
        sizes,
        room,
        costs,
        parameters=_count(model.parameters()),
        trained={name: _count(spec.parameters(model)) for name, spec in optimizers.items()},
        steps_per_s=speed,
        seconds=whole if longest is None else min(whole, 60 * longest),
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def predict_speed(run_plan: RunPlan, costs: Costs) -> float:
    """Predict env steps per second, limited by the learner's core, the actors' cores, and all cores together."""
    if run_plan.config.runtime == "inline":
        return 1 / costs.total
    return min(1 / costs.training.median, run_plan.actors / costs.acting, costs.limit)
