"""The gradients of a loss: one operation after the other, or by code that is compiled for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from starling.algos.base import Loss, together
from starling.errors import UserError
from starling.types import Tensor

Part = Callable[[], Loss]
"""A loss, or the part of one that has optimizers of its own."""
Gradients = dict[str, tuple[Tensor | None, ...]]
"""Of every optimizer's parameters; None for those that the loss does not depend on."""
Parameters = dict[str, list[nn.Parameter]]
Precision = Callable[[], AbstractContextManager[Any]]
Evaluated = tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None, Gradients]
"""Losses, metrics, priorities and gradients."""


def differentiate(part: Part, parameters: Parameters, precision: Precision) -> tuple[Loss, Gradients]:
    """The part, each of its losses differentiated for its own optimizer alone."""
    with precision():
        loss = part()
    last = list(loss.losses)[-1]
    return loss, {
        name: torch.autograd.grad(value, parameters[name], retain_graph=name != last, allow_unused=True)
        for name, value in loss.losses.items()
    }


def as_one(parts: Sequence[Part]) -> Part:
    """All parts of a loss, one after the other."""
    return lambda: together([part() for part in parts])


class Compiled:
    """`differentiate` in one piece of code, from the first operation of the loss to its last gradient.

    Were only the loss compiled, its backward pass would compute the gradients of all parameters that it depends on, and
    for every optimizer again. A loss that is not one piece (recurrent networks, sizes that depend on numbers) would
    lose by it as well, and is differentiated as it is: then it does not `pay`.
    """

    def __init__(self) -> None:
        import torch._dynamo.config as dynamo

        if hasattr(dynamo, "trace_autograd_ops"):  # which older versions of torch have not, and pay nothing then
            dynamo.trace_autograd_ops = True
        dynamo.capture_dynamic_output_shape_ops = True  # rows that a condition picks
        self._code: Callable[..., Evaluated] | None = None
        self.pays = True

    def __call__(self, part: Part, parameters: Parameters, precision: Precision) -> tuple[Loss, Gradients]:
        from torch._dynamo.exc import BackendCompilerFailed

        if self.pays:
            try:
                losses, metrics, priorities, gradients = (self._code or self._compile)(part, parameters, precision)
                return Loss(losses, lambda: metrics, priorities), gradients
            except BackendCompilerFailed as error:
                reason = " ".join(str(error).strip().splitlines()[:2])
                raise UserError(f"torch cannot compile the loss here ({reason}); use compile=false") from error
            except Exception:  # of any kind; a mistake of the loss itself will be raised again below
                self.pays = False
        return differentiate(part, parameters, precision)

    def _compile(self, *args: Any) -> Evaluated:
        """The first evaluation by the code."""
        _evaluate(*args)  # for nothing: whatever the loss remembers is not to be found out while it is compiled
        code = torch.compile(_evaluate, fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's compiler has much to say, and all of it to itself
            found = code(*args)
        self._code = code
        return found


def _evaluate(part: Part, parameters: Parameters, precision: Precision) -> Evaluated:
    """All that a loss says, and its gradients: metrics cannot wait, what they are made of does not outlive the code."""
    loss, gradients = differentiate(part, parameters, precision)
    priorities = None if loss.priorities is None else loss.priorities.detach()
    return _detached(loss.losses), _detached(loss.metrics()), priorities, gradients


def _detached(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in values.items()}
