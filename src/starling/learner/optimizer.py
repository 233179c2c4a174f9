"""An optimizer over flat buffers: all parameters are views of one tensor, and all gradients views of another.

Clipping, the finite check, the optimizer's arithmetic, an all-reduce, and the copy to a target network are then one
operation each instead of one per tensor, which saves most of the time of a step on small networks.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from starling.config.dialect import on_one_line
from starling.config.parts import OptimizerConfig, ScheduleConfig
from starling.errors import UserError
from starling.learner.rmsprop_tf import RMSpropTF
from starling.learner.schedule_clock import schedule_clock
from starling.types import Progress, RunLength, Tensor

ELEMENTWISE = {
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "RMSpropTF", "Rprop", "SGD",
}  # fmt: skip
"""Optimizers that treat every element separately, so that one flat tensor is equivalent to many small ones."""
FUSED = {"Adagrad", "Adam", "AdamW", "SGD"}
IMPLEMENTATION = {"fused", "foreach", "capturable"}
"""Arguments of torch's optimizers that choose an implementation; the result is the same."""
_TRIAL_STEPS = 3  # the first step of some optimizers and schedules differs from the others


def flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Copy the parameters into one new flat buffer and make each a view of it, with its own shape and strides."""
    flat = parameters[0].detach().new_empty(sum(p.numel() for p in parameters))
    offset = 0
    for parameter in parameters:
        view = flat.as_strided(parameter.shape, parameter.stride(), offset)
        view.copy_(parameter.detach())
        parameter.data = view
        offset += parameter.numel()
    return flat


class FlatOptimizer:
    """A torch optimizer by name with its schedule and clipping; no other optimizer has its parameters."""

    def __init__(self, config: OptimizerConfig, parameters: Iterable[nn.Parameter], length: RunLength) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ValueError("an optimizer needs at least one parameter")
        self.flat = flatten(self.parameters)
        self.gradient = torch.zeros_like(self.flat)
        self._gradients: list[Tensor] = []  # one view of it per parameter
        offset = 0
        for parameter in self.parameters:
            parameter.grad = self.gradient.as_strided(parameter.shape, parameter.stride(), offset)
            self._gradients.append(parameter.grad)
            offset += parameter.numel()
        self._clip, self._args = config.clip_norm, config.args
        self._optimizer = _make_optimizer(config, self._moved(config.name))
        self._kernel = _fused_kernel(self._optimizer)
        self._begun = False  # a step was taken, or moments were restored; only `apply_if` asks
        self._position, args = schedule_clock(config.schedule, length)
        self._schedule = _make_schedule(config.schedule, self._optimizer, args)
        kept = {} if self._schedule is None else vars(self._schedule)
        self._schedule_settings = {key: kept[key] for key in args if key in kept}  # as the schedule stores them

    def _moved(self, name: str) -> list[nn.Parameter]:
        if name not in ELEMENTWISE:
            return self.parameters
        whole = nn.Parameter(self.flat)
        whole.grad = self.gradient
        return [whole]

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Set the gradients of the parameters; None means 0."""
        if any(gradient is None for gradient in gradients):
            self.gradient.zero_()
        pairs = [(mine, new) for mine, new in zip(self._gradients, gradients, strict=True) if new is not None]
        torch._foreach_copy_([mine for mine, _ in pairs], [new for _, new in pairs])

    def gradient_norm(self) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        return norm

    def apply(self, norm: float) -> None:
        """Clip the gradient, given its norm, and take an optimizer step."""
        if self._clip is not None and norm > self._clip:
            self.gradient.mul_(self._clip / norm)
        if self._kernel is None or not self._optimizer.state:
            self._optimizer.step()
        else:
            _fused_step(self._kernel, self._optimizer)

    def apply_if(self, finite: Tensor, norm: Tensor) -> None:
        """`apply` where the host does not know the norm: a step that changes nothing if `finite` [] is False.

        Only the very first step, which allocates the moments, waits for the device.
        """
        if not self._begun and not finite:
            return
        if self._clip is not None:
            self.gradient.mul_((self._clip / norm).clamp(max=1.0))
        if self._kernel is not None and self._begun:
            _fused_step(self._kernel, self._optimizer, finite)
            return
        self._begun = True
        changed = [*self._optimizer.param_groups[0]["params"], *self._moments_on_device()]
        before = [tensor.detach().clone() for tensor in changed]
        self._optimizer.step()
        with torch.no_grad():
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(torch.where(finite, tensor, old))

    def _moments_on_device(self) -> list[Tensor]:
        values = [value for moments in self._optimizer.state.values() for value in moments.values()]
        return [value for value in values if isinstance(value, Tensor) and value.device == self.flat.device]

    def apply_settings(self) -> None:
        """Replace restored arguments by the configured ones; a schedule continues from its position."""
        (group,) = self._optimizer.param_groups
        group.update({key: value for key, value in self._args.items() if key != "lr"})
        wanted = float(self._args.get("lr", group["lr"]))
        if self._schedule is None:
            group["lr"] = wanted
            return
        vars(self._schedule).update(self._schedule_settings)
        self._schedule.base_lrs = [wanted]
        closed_form = getattr(self._schedule, "_get_closed_form_lr", None)
        if closed_form is not None:
            (group["lr"],) = closed_form()

    def end_update(self, progress: Progress) -> None:
        """Advance the schedule by one update, or to this point of the run if its lengths are in env steps.

        A run may have more updates than planned, because resets are part of batches but are not env steps. A schedule
        with an end (OneCycleLR) then stays there, while torch would raise.
        """
        if self._schedule is None:
            return
        position = self._schedule.last_epoch + 1 if self._position is None else self._position(progress)
        last = getattr(self._schedule, "total_steps", math.inf) - 1
        while self._schedule.last_epoch < min(position, last):
            self._schedule.step()

    @property
    def learning_rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def get_state(self) -> dict[str, Any]:
        state = self._optimizer.state_dict()
        return {
            "moments": {str(i): dict(moments) for i, moments in state["state"].items()},
            "groups": {str(i): group for i, group in enumerate(state["param_groups"])},
            "schedule": None if self._schedule is None else self._schedule_state(),
        }

    def _schedule_state(self) -> dict[str, Any]:
        """State without the milestones of MultiStepLR: they are settings, and checkpoints cannot have integer keys."""
        assert self._schedule is not None
        return {key: value for key, value in self._schedule.state_dict().items() if not isinstance(value, Counter)}

    def set_state(self, state: dict[str, Any]) -> None:
        groups = [state["groups"][key] for key in sorted(state["groups"], key=int)]
        moments = {int(i): values for i, values in state["moments"].items()}
        mine = self._optimizer.state_dict()["param_groups"]
        # Which implementation is used depends on the device, not on the run.
        groups = [
            {**_known(fresh, saved), **{key: fresh[key] for key in IMPLEMENTATION & fresh.keys()}}
            for fresh, saved in zip(mine, groups, strict=True)
        ]
        self._check_moments(moments)
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._begun = bool(moments)
        # A fused step does not tell the schedule, which warns if it thinks that there was none (torch 2.13).
        self._optimizer._opt_called = self._begun  # type: ignore[attr-defined]
        if self._schedule is not None:
            self._schedule.load_state_dict(_known(self._schedule_state(), state["schedule"]))

    def _check_moments(self, moments: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise ValueError if shapes of moments and parameters differ, which a fused kernel does not check."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if any(not 0 <= i < len(parameters) for i in moments):
            raise ValueError("saved moments of a parameter that does not exist")
        if isinstance(self._optimizer, torch.optim.Adafactor):  # its moments are means of rows and columns
            return
        for i, values in moments.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.numel() != 1 and value.shape != parameters[i].shape:
                    raise ValueError(f"{name} is {tuple(value.shape)}, its parameter {tuple(parameters[i].shape)}")


def _known(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Select the saved entries that exist in `mine`; torch would accept any and set them as attributes.

    Raises ValueError if a value has another type; None and numbers are interchangeable.
    """
    known = {name: value for name, value in saved.items() if name in mine}
    for name, value in known.items():
        if _kind(value) != _kind(mine[name]):
            raise ValueError(f"a saved {name} is {type(value).__name__}, not {type(mine[name]).__name__}")
    return known


def _kind(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return float
    if isinstance(value, list | tuple):
        return [_kind(child) for child in value]
    return type(value)


def moment_names(config: OptimizerConfig) -> frozenset[str]:
    """Names of the moments that an optimizer keeps per parameter."""
    parameter = nn.Parameter(torch.zeros(1, 1))
    parameter.grad = torch.zeros(1, 1)
    optimizer = _make_optimizer(config, [parameter])
    optimizer.step()
    return frozenset(optimizer.state[parameter])


def _without_compiler(make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Create an optimizer without importing torch's compiler, which takes two seconds only to disable compilation.

    The other wrappers that torch adds to `step` are hooks, which are not used here, and `no_grad`.
    """
    base = torch.optim.Optimizer
    for method in (base.add_param_group, base.state_dict, base.load_state_dict, base.zero_grad):
        plain: Any = inspect.unwrap(method)
        plain.__dynamo_disable = plain  # torch's cache of the uncompiled method
    optimizer = make()
    step = torch.no_grad()(inspect.unwrap(type(optimizer).step))
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer class called `name`: from torch.optim, or `RMSpropTF`."""
    found: type[torch.optim.Optimizer] = RMSpropTF if name == RMSpropTF.__name__ else getattr(torch.optim, name)
    return found


def _make_optimizer(config: OptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    args = dict(config.args)
    if config.name in FUSED and "foreach" not in args:
        args.setdefault("fused", True)
    on_cpu = parameters[0].device.type == "cpu"
    if (
        not on_cpu
        and not args.get("fused")
        and "capturable" in inspect.signature(optimizer_class(config.name)).parameters
    ):
        args.setdefault("capturable", True)  # steps are counted on the device, so that a skipped one does not count
    with _mendable("optimizer", config):
        return _without_compiler(lambda: optimizer_class(config.name)(parameters, **args))


def _fused_kernel(optimizer: torch.optim.Optimizer) -> Callable[..., None] | None:
    """The fused kernel of Adam or AdamW without amsgrad and maximize; None for any other optimizer."""
    kernel = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}.get(type(optimizer))
    settings = optimizer.defaults
    return kernel if kernel and settings["fused"] and not (settings["amsgrad"] or settings["maximize"]) else None


def _fused_step(kernel: Callable[..., None], optimizer: torch.optim.Optimizer, finite: Tensor | None = None) -> None:
    """`optimizer.step()` for one flat tensor, without torch's handling of groups, devices, and hooks.

    For a network of a few thousand parameters, that overhead takes twice as long as the kernel. Nothing changes if
    `finite` [] is given and False.
    """
    (group,) = optimizer.param_groups
    (parameter,) = group["params"]
    state = optimizer.state[parameter]
    state["step"] += 1 if finite is None else finite
    with torch.no_grad():
        kernel(
            [parameter],
            [parameter.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=None if finite is None else (~finite).float(),
        )


def _make_schedule(
    config: ScheduleConfig | None, optimizer: torch.optim.Optimizer, args: dict[str, Any]
) -> torch.optim.lr_scheduler.LRScheduler | None:
    if config is None:
        return None
    with _mendable("schedule", config):
        schedule: torch.optim.lr_scheduler.LRScheduler = getattr(torch.optim.lr_scheduler, config.name)(
            optimizer, **args
        )
    return schedule


@contextmanager
def _mendable(kind: str, config: OptimizerConfig | ScheduleConfig) -> Iterator[None]:
    """Turn any exception about the arguments of an optimizer or a schedule into a `UserError` of one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{kind} {config.name} cannot be used with {on_one_line(config.args)}: {reason}") from error


def check_optimizer(config: OptimizerConfig, length: RunLength) -> None:
    """Raise `UserError` for settings with which training would fail, by taking a few steps with a small layer."""
    layer = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    trial = FlatOptimizer(config, layer, length)
    for step in range(1, _TRIAL_STEPS + 1):
        with _mendable("optimizer", config):
            trial.set_gradients([torch.ones_like(parameter) for parameter in trial.parameters])
            trial.apply(float(trial.gradient_norm()))
            if not bool(torch.isfinite(trial.flat).all()):
                raise ValueError("parameters are not finite after a step")
        if config.schedule is not None:
            with _mendable("schedule", config.schedule):
                share = step / length.planned_updates
                trial.end_update(Progress(int(share * (length.env_steps or 0)), step, share))
                if not 0 <= trial.learning_rate < math.inf:
                    raise ValueError(f"the learning rate becomes {trial.learning_rate:g}")
