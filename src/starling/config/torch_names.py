"""Names of optimizers and schedules that a configuration may use, checked before torch is imported.

`tests/learner/test_optimizer.py` compares these lists with the classes of torch.optim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starling.config.dialect import show
from starling.errors import did_you_mean, quoted

OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    "RMSpropTF",
)  # fmt: skip
UNUSABLE_OPTIMIZERS = {
    "LBFGS": "evaluates the loss several times per step, and here a batch's loss is computed once",
    "Muon": "optimizes matrices only, and networks have biases",
    "SparseAdam": "takes sparse gradients only, and those of networks are dense",
}
SCHEDULES = (
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR",
    "MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR",
)  # fmt: skip
UNUSABLE_SCHEDULES = {
    "ChainedScheduler": "is made of other schedules, which a configuration cannot hold",
    "LambdaLR": "needs a function, which a configuration cannot hold",
    "MultiplicativeLR": "needs a function, which a configuration cannot hold",
    "ReduceLROnPlateau": "follows a metric, and schedules here follow the number of updates",
    "SequentialLR": "is made of other schedules, which a configuration cannot hold",
}
COUNTS = {
    "T_0", "T_max", "T_mult", "epochs", "milestones", "step_size", "step_size_down", "step_size_up", "steps_per_epoch",
    "total_iters", "total_steps",
}  # fmt: skip
"""Arguments of schedules that count updates."""
NUMBERS = {
    "alpha", "beta2_decay", "betas", "d", "dampening", "eps", "etas", "initial_accumulator_value", "lambd", "lr",
    "lr_decay", "momentum", "momentum_decay", "rho", "step_sizes", "t0", "weight_decay",
    "base_lr", "base_momentum", "div_factor", "end_factor", "eta_min", "factor", "final_div_factor", "gamma",
    "last_epoch", "max_lr", "max_momentum", "pct_start", "power", "start_factor", *COUNTS,
}  # fmt: skip
"""Arguments of optimizers and schedules that are a number or a list of numbers; the others are flags and strings."""


def check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for numeric arguments that are no numbers, and for negative counts, which torch accepts."""
    for name, value in arguments.items():
        if name not in NUMBERS:
            continue
        for number in value if isinstance(value, list | tuple) else [value]:
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
                raise ValueError(f"{name} must be a number, not {show(number)}")
            if name in COUNTS and number is not None and number < 0:
                raise ValueError(f"{name} must be at least 0, not {number}")


def check_name(kind: str, name: str, usable: Collection[str], unusable: Mapping[str, str]) -> str:
    """Return `name` if it can be used.

    Raises:
        ValueError: It cannot; the message has the reason and the alternatives.
    """
    if name in usable:
        return name
    known = f"use one of {', '.join(usable)}"
    if name in unusable:
        raise ValueError(f"{kind} {name} cannot be used: it {unusable[name]}; {known}")
    raise ValueError(f"unknown {kind} {quoted(name)}{did_you_mean(name, usable)} ({known})")
