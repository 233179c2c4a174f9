"""Names of optimizers and schedules that a configuration may use, checked before torch is imported.

`tests/learner/test_optimizer.py` tries every class of torch.optim and compares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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


def check_name(kind: str, name: str, usable: Collection[str], unusable: Mapping[str, str]) -> str:
    """`name`, if it is usable.

    Raises:
        ValueError: It is not; the message says why, and what there is.
    """
    if name in usable:
        return name
    known = f"use one of {', '.join(usable)}"
    if name in unusable:
        raise ValueError(f"{kind} {name} cannot be used: it {unusable[name]}; {known}")
    raise ValueError(f"unknown {kind} {quoted(name)}{did_you_mean(name, usable)} ({known})")
