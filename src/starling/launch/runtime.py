"""Builds the runtime that a configuration asks for; nothing is started yet."""

from __future__ import annotations

import torch

from starling.hardware import Room, device, use_device
from starling.launch import local
from starling.launch.fitting import refuse
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.launch.sizes import predict_sizes
from starling.runtime.inline_runtime import InlineRuntime
from starling.runtime.learners_runtime import LearnersRuntime
from starling.runtime.processes_runtime import ProcessesRuntime

Runtime = InlineRuntime | ProcessesRuntime | LearnersRuntime


def build_runtime(run_plan: RunPlan, room: Room | None = None) -> Runtime:
    """Build all parts of a run and connect them; raise `UserError` if it does not fit into `room`, if given."""
    if run_plan.learners == 1:
        use_device(where := device(run_plan.config), run_plan.config)
    else:
        where = torch.device("cpu")  # the learners have their own
    model = build_model(run_plan, where)
    layout = layout_of(run_plan, model)
    if room is not None:
        refuse(run_plan, predict_sizes(run_plan, model, layout), room)
    if run_plan.config.runtime == "inline":
        return local.build_inline(run_plan, model, layout)
    if run_plan.config.runtime == "ray":
        from starling.launch import ray  # imports Ray, which is an extra

        return ray.build_cluster(run_plan, model, layout)
    if run_plan.learners > 1:
        return local.build_learners(run_plan, model, layout)
    return local.build_processes(run_plan, model, layout)
