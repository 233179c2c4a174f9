"""Gradients of a loss, eager or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from starling.algos.base import Loss, merge_losses
from starling.errors import UserError
from starling.types import Tensor

Part = Callable[[], Loss]
"""A function that computes a loss, or the part of one that has its own optimizers."""
Gradients = dict[str, tuple[Tensor | None, ...]]
"""Gradients of every optimizer's parameters; None if the loss does not depend on a parameter."""
Parameters = dict[str, list[nn.Parameter]]
Precision = Callable[[], AbstractContextManager[Any]]
Evaluated = tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None, Gradients]
"""Losses, metrics, priorities, and gradients."""


def differentiate(
    part: Part, parameters: Parameters, precision: Precision, factor: Tensor | None = None
) -> tuple[Loss, Gradients]:
    """Evaluate a part, and differentiate each of its losses with respect to its own optimizer's parameters.

    The gradients are those of the losses times `factor` [], if given.
    """
    with precision():
        loss = part()
    last = list(loss.losses)[-1]
    return loss, {
        name: torch.autograd.grad(
            value if factor is None else value * factor, parameters[name], retain_graph=name != last, allow_unused=True
        )
        for name, value in loss.losses.items()
    }


def as_one(parts: Sequence[Part]) -> Part:
    """A single part that evaluates all parts in order."""
    return lambda: merge_losses([part() for part in parts])


class Compiled:
    """`differentiate` compiled as a single graph, forward and backward.

    If only the loss were compiled, its backward pass would compute the gradients of all parameters that it depends on,
    again for every optimizer. A loss with graph breaks (recurrent networks, data-dependent shapes) would also become
    slower; it runs eagerly, and `pays` is False.

    Args:
        graphs: Record CUDA graphs, which launch all kernels at once (torch's mode "reduce-overhead").
    """

    def __init__(self, graphs: bool = False) -> None:
        import torch._dynamo.config as dynamo

        if hasattr(dynamo, "trace_autograd_ops"):  # older versions of torch lack it; there `pays` becomes False
            dynamo.trace_autograd_ops = True
        dynamo.capture_dynamic_output_shape_ops = True  # rows selected by a mask
        self._graphs = graphs
        self._code: Callable[..., Evaluated] | None = None
        self.pays = True

    def __call__(
        self, part: Part, parameters: Parameters, precision: Precision, factor: Tensor | None = None
    ) -> tuple[Loss, Gradients]:
        from torch._dynamo.exc import BackendCompilerFailed

        if self.pays:
            try:
                if self._graphs:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                found = (self._code or self._compile)(part, parameters, precision, factor)
                losses, metrics, priorities, gradients = self._kept(found)
                return Loss(losses, lambda: metrics, priorities), gradients
            except BackendCompilerFailed as error:
                reason = " ".join(str(error).strip().splitlines()[:2])
                raise UserError(f"torch cannot compile the loss here ({reason}); use compile=false") from error
            except Exception:  # of any kind; an error of the loss itself is raised again below
                self.pays = False
        return differentiate(part, parameters, precision, factor)

    def _kept(self, found: Evaluated) -> Evaluated:
        """Copies of what is used after the next call, which overwrites the memory of a graph; gradients are not."""
        if not self._graphs:
            return found
        losses, metrics, priorities, gradients = found
        kept = [{name: value.clone() for name, value in values.items()} for values in (losses, metrics)]
        return kept[0], kept[1], None if priorities is None else priorities.clone(), gradients

    def _compile(self, *args: Any) -> Evaluated:
        """Compile, and return the first result."""
        _evaluate(*args)  # fills caches of the loss, which must not happen during compilation
        code = torch.compile(_evaluate, fullgraph=True, mode="reduce-overhead" if self._graphs else None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the compiler do not concern the user
            found = code(*args)
        self._code = code
        return found


def _evaluate(part: Part, parameters: Parameters, precision: Precision, factor: Tensor | None) -> Evaluated:
    """Losses, metrics, priorities, and gradients; metrics are computed here, as their inputs stay inside the graph."""
    loss, gradients = differentiate(part, parameters, precision, factor)
    priorities = None if loss.priorities is None else loss.priorities.detach()
    return _detached(loss.losses), _detached(loss.metrics()), priorities, gradients


def _detached(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in values.items()}
