"""What a run will need, said before it starts: memory and disk, and from a short measurement the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from starling.launch.fitting import refuse
from starling.launch.plan import Blueprint, build_model, layout_of
from starling.launch.room import Room, find_room
from starling.launch.sizes import MAIN, Sizes, predict_sizes
from starling.tools.benchmark.costs import Costs, measure


@dataclass(frozen=True)
class Plan:
    """A run that fits: what it needs, what there is, what a step costs and how long it takes."""

    sizes: Sizes
    room: Room
    costs: Costs
    parameters: int  # of the network
    steps_per_s: float
    seconds: float


def plan(blueprint: Blueprint, runs: Path, seconds: float) -> Plan:
    """Predict a run from a measurement of about so many seconds; refuses one that cannot fit, before measuring."""
    model = build_model(blueprint)
    sizes, room = predict_sizes(blueprint, model, layout_of(blueprint, model)), find_room(runs)
    refuse(blueprint, sizes, room)
    costs = measure(blueprint, seconds)
    sizes = replace(sizes, programs=sizes.programs + max(0, costs.peak - MAIN - sizes.learning - sizes.batches))
    refuse(blueprint, sizes, room)
    speed = predict_speed(blueprint, costs)
    longest = blueprint.config.stop.minutes
    whole = blueprint.config.stop.env_steps / speed
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Plan(sizes, room, costs, parameters, speed, whole if longest is None else min(whole, 60 * longest))


def predict_speed(blueprint: Blueprint, costs: Costs) -> float:
    """Env steps a second: as many as the learner's core, the actors' cores and all cores together allow."""
    if blueprint.config.runtime == "inline":
        return 1 / costs.total
    return min(1 / costs.training.median, blueprint.actors / costs.acting, costs.limit)
