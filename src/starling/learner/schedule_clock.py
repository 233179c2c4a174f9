"""The time of learning-rate schedules: updates, or env steps in which the schedule's updates are planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starling.config.dialect import on_one_line
from starling.config.parts import WHOLE_RUN, ScheduleConfig
from starling.config.quantities import Quantity
from starling.config.torch_names import COUNTS
from starling.errors import UserError
from starling.types import Progress, RunLength


def schedule_clock(
    config: ScheduleConfig | None, length: RunLength
) -> tuple[Callable[[Progress], int] | None, dict[str, Any]]:
    """Return the position of a schedule as a function of progress, and its arguments with all lengths in updates.

    None stands for one position per update. Lengths in env steps, such as that of the run, become as many updates as
    are planned in them, and the position follows the env steps: it does not depend on when learning starts.
    """
    given = {} if config is None else config.args
    lengths = {name: value for name, value in given.items() if name in COUNTS or value == WHOLE_RUN}
    in_steps = any(_is_text(value) and value != WHOLE_RUN for value in lengths.values())
    over_run = WHOLE_RUN in given.values()
    if not in_steps:
        args = {name: length.planned_updates if value == WHOLE_RUN else value for name, value in given.items()}
        if not over_run or length.env_steps is None:
            return None, args
        return lambda progress: int(progress.fraction * length.planned_updates), args
    if over_run and length.env_steps is None:
        raise UserError(
            f"schedule arguments {on_one_line(given)}: the run is counted in updates (stop.updates), so other lengths"
            " must be too"
        )
    args = {**given, **{name: _in_updates(value, length) for name, value in lengths.items()}}
    return lambda progress: int(progress.env_steps * length.updates_per_step), args


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and any(isinstance(one, str) for one in value))


def _in_updates(value: Any, length: RunLength) -> Any:
    if isinstance(value, list):
        return [_in_updates(one, length) for one in value]
    if not isinstance(value, str):
        return value
    steps = length.env_steps if value == WHOLE_RUN else Quantity.parse(value, "env steps").amount
    return max(1, round((steps or 0) * length.updates_per_step))
