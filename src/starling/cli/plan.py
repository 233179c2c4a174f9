"""`starling plan`"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from starling.cli.arguments import Allow, AsJson, Overrides, Source

if TYPE_CHECKING:
    from starling.tools.benchmark.plan import Plan


def plan(
    source: Source,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure, roughly.")] = 5.0,
    runs: Annotated[Path, typer.Option(help="Folder that would hold the run.")] = Path("runs"),
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Predict a run's memory, disk, and time from a short measurement.

    A run that cannot fit is refused with code 2 and one line that says which setting to lower, and to what.

    Example: starling plan dqn-minatar-breakout algo.capacity=1000000
    """
    from starling.cli.precheck import load_source

    config = load_source(source, overrides or [], allow)

    from starling.hardware import set_up_torch
    from starling.launch.plan import validated_plan
    from starling.tools.benchmark import plan as planning

    run_plan = validated_plan(config)
    set_up_torch(1)
    made = planning.plan(run_plan, runs, seconds)
    print(as_table(made))
    if as_json:
        print(json.dumps(as_values(made)))


MEMORY = ("programs", "learning", "batches", "tables", "saving", "memories", "shared")


def as_values(plan: Plan) -> dict[str, Any]:
    """Return the plan as values for JSON: bytes, seconds, env steps per second."""
    from dataclasses import asdict

    sizes, costs = plan.sizes, plan.costs
    parts = {name: getattr(sizes, name) for name in MEMORY}
    return {
        "parameters": plan.parameters,
        "parameters_by_optimizer": plan.trained,
        "memory": {**parts, "total": sizes.memory, "free": plan.room.memory},
        "disk": {"checkpoint": sizes.checkpoint, "total": sizes.disk, "free": plan.room.disk},
        "seconds_a_step": {name: asdict(getattr(costs, name)) for name in ("env_step", "inference", "training")},
        "cores": costs.cores,
        "limit_steps_per_s": costs.limit,
        "steps_per_s": plan.steps_per_s,
        "seconds": None if math.isinf(plan.seconds) else plan.seconds,
    }


def as_table(plan: Plan) -> str:
    """Format the plan as a table of name, value, and explanation."""
    from starling.launch.fitting import in_words

    sizes, room, costs = plan.sizes, plan.room, plan.costs
    parts = ", ".join(f"{name} {in_words(getattr(sizes, name))}" for name in MEMORY if getattr(sizes, name))
    kinds = (("env step", costs.env_step), ("inference", costs.inference), ("training", costs.training))
    learning = f"parameters; {in_words(sizes.learning)} with target, gradients, moments, and the actors' copies"
    trained = plan.trained if len(plan.trained) > 1 else {}
    rows = [
        ("network", f"{plan.parameters:,}", learning),
        *((name, f"{count:,}", "of them, with an optimizer of their own") for name, count in trained.items()),
        ("memory", in_words(sizes.memory), f"of {in_words(room.memory)} free: {parts}"),
        ("shared", in_words(sizes.shared), "of it shared by processes"),
        ("disk", in_words(sizes.disk), f"of {in_words(room.disk)} free: {sizes.checkpoints} checkpoints at most"),
        *((name, micro(c.median), f"us of one core per step ({micro(c.low)} to {micro(c.high)})") for name, c in kinds),
        ("speed", f"{plan.steps_per_s:,.0f}", f"steps/s; {costs.limit:,.0f} if {costs.cores} cores did nothing else"),
        ("time", *_time(plan.seconds)),
    ]
    return "\n".join(f"{name:<10} {value:>12}  {about}" for name, value, about in rows)


def _time(seconds: float) -> tuple[str, str]:
    from starling.cli.show import duration

    if math.isinf(seconds):
        return "?", "the run ends by its episodes or its return"
    return duration(seconds), "at that speed, plus evaluations and checkpoints"


def micro(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"
