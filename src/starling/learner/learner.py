"""The learner: turns batches into gradients, and gradients into new weights."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from starling import tree
from starling.algos.base import Algorithm, Loss, LossPart, merge_losses
from starling.config.quantities import Quantity
from starling.learner.gradients import Compiled, Part, as_one, differentiate
from starling.learner.group import LearnerGroup, RankLostError, SingleLearner
from starling.learner.loss_scale import LossScale
from starling.learner.means import Means
from starling.learner.minibatches import minibatches, orders, steps_as_rows
from starling.learner.optimizer import FlatOptimizer, flatten
from starling.learner.prefetch import Prefetch
from starling.learner.timeline import Timeline
from starling.ops.priority import importance_weights
from starling.types import Batch, Keys, NDArray, Progress, Resets, RunLength, Sample, Tensor, Trajectory

MAX_SKIPPED = 20
"""Optimizer steps in a row that may be skipped for a non-finite gradient before the run is stopped."""
CHECKED_EVERY = 100
"""Updates between two comparisons of the learners' weights."""
LAG_EVERY = 8
"""Updates between two measurements of a batch's lag; a row of metrics has at least one."""
LAG = "learner/lag"


class DivergedError(RuntimeError):
    """Gradients stayed non-finite, weights became non-finite, or the learners' weights differ.

    `batch` holds the arrays of the last (mini)batch by name and `norms` its gradient norms by optimizer, if known.
    """

    def __init__(self, reason: str, batch: Batch | None = None, norms: dict[str, float] | None = None) -> None:
        super().__init__(reason)
        self.norms = norms or {}
        self.batch: dict[str, NDArray] = {}
        if batch is not None:
            arrays = tree.to_numpy({"trajectory": batch.trajectory, "weight": batch.weight, "source": batch.source})
            self.batch = {name.replace("/", "."): array for name, array in tree.items(arrays)}


@dataclass(frozen=True)
class LearnResult:
    """The items of a batch that was learned from, and their new priorities [B] if the algorithm gives any."""

    keys: Keys
    priorities: NDArray | None


@dataclass(frozen=True)
class _OptimizerStep:
    """Gradient norms by optimizer and sum of all weights [] after one step, to see whether the step was skipped."""

    norms: dict[str, Tensor]
    weight_sum: Tensor


def _all_finite(norms: Mapping[str, Any]) -> bool:
    return all(math.isfinite(norm) for norm in norms.values())


def _mixed(*numbers: int) -> int:
    """A seed below 2**63, other for every tuple of numbers (SplitMix64 of each)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1


def _check_disjoint(parameters: Mapping[str, Sequence[nn.Parameter]]) -> None:
    """Raise ValueError if two optimizers have a parameter in common: it would be a view of one flat buffer only."""
    owners: dict[nn.Parameter, str] = {}
    for name, mine in parameters.items():
        for parameter in mine:
            if (other := owners.setdefault(parameter, name)) != name:
                raise ValueError(f"optimizers {other!r} and {name!r} have a parameter in common; each needs its own")


class Learner:
    """One update per batch: prepare, epochs of minibatches, optimizer steps, target network, new priorities.

    `step` calls `_prepare`, `_learn_epochs`, and `_update_target`. Inside an epoch, `_learn_minibatch` calls
    `_compute_and_step`, which computes gradients, then `_all_reduce_gradient` and `_apply_gradients`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        *,
        seed: int,
        length: RunLength,
        autocast: torch.dtype | None = None,  # a lower precision, used where autocast finds it safe
        compile_loss: bool = False,
        graphs: bool = False,  # with `compile_loss`: CUDA graphs
    ) -> None:
        self.algorithm, self.model = algorithm, model
        self.group: LearnerGroup = SingleLearner()
        self._seed = seed
        self._autocast = autocast
        self._spec = algorithm.learning()
        self._target = copy.deepcopy(model).requires_grad_(False) if self._spec.target else None
        self._optimizers = {
            name: FlatOptimizer(spec.config, spec.parameters(model), length)
            for name, spec in self._spec.optimizers.items()
        }
        self._parameters = {name: optimizer.parameters for name, optimizer in self._optimizers.items()}
        _check_disjoint(self._parameters)
        self._compiled_loss = Compiled(graphs) if compile_loss else None
        self._compiled_everywhere = True  # False until every rank of the group has compiled its loss
        self._target_flat = self._flatten_target()
        target_buffers = () if self._target is None else self._target.buffers()
        self._buffer_pairs = list(zip(target_buffers, model.buffers(), strict=False))  # (target's, model's)
        self._device = next(model.parameters()).device
        self._on_cpu = self._device.type == "cpu"
        self._scale = LossScale(self._device) if autocast == torch.float16 else None
        self._prefetch = None if self._on_cpu else Prefetch(self._device)
        self._rank = 0
        self._rng = np.random.Generator(np.random.PCG64(seed))  # shuffles minibatches
        # For losses that sample. It is seeded anew for every update: its state would mean nothing on another device.
        self._generator = torch.Generator(self._device)
        # Persistent buffers are running statistics, which `prepare` updates; the others are constants or caches.
        persistent = model.state_dict()
        self._statistics = [buffer for name, buffer in model.named_buffers() if name in persistent]
        self._ones = torch.empty(0)
        self._means = Means()
        self._pending_steps: list[_OptimizerStep] = []  # of this update, not yet copied to the host
        self._timeline = Timeline()  # env steps at each policy version, to compute the lag in env steps
        self._skipped = self.total_skipped = 0  # optimizer steps: in a row, in total
        self._optimizer_steps = 0  # of the update in progress
        self._length = length
        self.updates = 0

    def _flatten_target(self) -> dict[str, Tensor]:
        """Flatten the target's parameters per optimizer, in the order of its own, to update them in one operation."""
        if self._target is None:
            return {}
        twins = dict(zip(self.model.parameters(), self._target.parameters(), strict=True))
        return {name: flatten([twins[p] for p in opt.parameters]) for name, opt in self._optimizers.items()}

    def progress(self, env_steps: int) -> Progress:
        """Training progress of the whole group, given the env steps that have arrived at this learner."""
        return self._progress_at(self.group.total(env_steps))

    def _progress_at(self, total_env_steps: int) -> Progress:
        """Training progress, given the env steps of all ranks in total."""
        return self._length.progress(total_env_steps, self.updates)

    def step(
        self, sample: Sample | None, env_steps: int, upcoming: Callable[[], Sample | None] = lambda: None
    ) -> LearnResult | None:
        """Learn from one batch, when `env_steps` have arrived at this learner.

        `upcoming` returns the next batch if there is one already. A GPU gets it while it computes with this one.

        Returns None if some rank has no batch. Pass the same batch again then, and also after a `RankLostError`.
        """
        total_env_steps = self.group.sync_env_steps(sample is not None, env_steps)
        if sample is None or total_env_steps is None:  # no batch here, or at another rank
            return None
        statistics_before = self._copy_statistics()
        self._reseed()
        try:
            batch, epochs = self._to_batch(sample, self._progress_at(total_env_steps))
            batch = self._prepare(batch, statistics_before)
            priorities = self._learn_epochs(batch, epochs, upcoming)
        except RankLostError:
            self._pending_steps.clear()
            # The same batch will be prepared again, so undo its effect on the statistics, unless a weight has changed:
            # after an optimizer step, weights and statistics both keep what they have learned from it.
            if statistics_before is not None and self._optimizer_steps == 0:
                for buffer, then in zip(self._statistics, statistics_before, strict=True):
                    buffer.copy_(then)
            raise
        self._record_lag(sample.trajectory.policy_version, batch.progress)
        self.updates, self._optimizer_steps = self.updates + 1, 0
        previous = self._timeline.latest
        self._timeline.add(self.updates, batch.progress.env_steps)
        for optimizer in self._optimizers.values():
            optimizer.end_update(batch.progress)
        if self._target_is_due(previous):
            self._update_target()
        if self.updates % CHECKED_EVERY == 0 and not self.group.all_equal(self._fingerprint):
            raise DivergedError(f"the learners' weights differ after {self.updates} updates")
        return LearnResult(sample.keys, priorities)

    def _reseed(self) -> None:
        """Seed the generator for this update."""
        self._generator.manual_seed(_mixed(self._seed, self._rank, self.updates))

    def _fingerprint(self) -> int:
        """A checksum of the weights."""
        crc = 0
        for optimizer in self._optimizers.values():
            crc = zlib.crc32(optimizer.flat.cpu().numpy().data, crc)
        return crc

    def _copy_statistics(self) -> list[Tensor] | None:
        """Copy the statistics, to all-reduce their changes later; None for a single learner or without statistics."""
        shared = self.group.size > 1 and len(self._statistics) > 0
        return [buffer.clone() for buffer in self._statistics] if shared else None

    def _prepare(self, batch: Batch, before: list[Tensor] | None) -> Batch:
        """Call the algorithm's `prepare`; all-reduce its changes of the statistics, which were `before`."""
        with torch.no_grad(), self._precision():
            batch = self.algorithm.prepare(self.model, self._target, batch)
        if before is not None:
            self._all_reduce_statistics(before)
        return batch

    def _all_reduce_statistics(self, before: list[Tensor]) -> None:
        """All-reduce the changes of the statistics since `before`."""
        pairs = zip(self._statistics, before, strict=True)
        changes = torch.cat([(now.double() - then.double()).flatten() for now, then in pairs])  # [n]
        self.group.all_reduce_sum(changes)
        chunks = torch.split(changes, [then.numel() for then in before])
        for buffer, then, change in zip(self._statistics, before, chunks, strict=True):
            buffer.copy_(then.double() + change.view_as(then))

    def _record_lag(self, versions: NDArray, now: Progress) -> None:
        """Record the mean lag, in updates and in env steps, of the policy versions [B] that acted."""
        if self.updates % LAG_EVERY and LAG in self._means:
            return
        rows = len(versions)
        self._means.add(LAG, now.updates - float(versions.sum()) / rows)
        self._means.add("learner/lag_steps", now.env_steps - float(self._timeline.at(versions).sum()) / rows)

    def _to_batch(self, sample: Sample, progress: Progress) -> tuple[Batch, tuple[Tensor | None, ...]]:
        """The batch as tensors, and the order of its rows in every epoch.

        All of it is copied to a device at once, or in two parts if the steps were prefetched.
        """
        recorded, beta = sample.trajectory, self._spec.importance_beta
        weight = None if beta is None else self._importance_weights(sample, beta(progress)).float().numpy()
        rows = recorded.batch_size * (recorded.length if self._spec.split == "step" else 1)
        host_inputs: Any = (weight, orders(rows, self._spec, self._rng))
        there = None if self._prefetch is None else self._prefetch.take(sample)
        if there is None:
            host_inputs = (self._steps(sample), *host_inputs)
        inputs = tree.to_torch(host_inputs, self._device, contiguous=self._compiled_loss is not None)
        (trajectory, source), weights, epochs = inputs if there is None else (there, *inputs)
        batch = Batch(
            trajectory=trajectory,
            weight=self._equal_weights(len(sample.keys)) if weights is None else weights,
            source=source,
            progress=progress,
            generator=self._generator,
        )
        return batch, epochs

    def _steps(self, sample: Sample) -> tuple[Trajectory[NDArray], NDArray]:
        """The part of a batch that does not depend on when it is learned from."""
        steps = sample.trajectory
        if not self._on_cpu and tree.leaves(steps.carry):
            steps = replace(steps, resets=Resets.of(steps.first))
        return steps, sample.source

    def _equal_weights(self, rows: int) -> Tensor:
        """Ones [B], allocated once."""
        if len(self._ones) != rows:
            self._ones = torch.ones(rows, device=self._device)
        return self._ones

    def _importance_weights(self, sample: Sample, beta: float) -> Tensor:
        """Importance weights w_i = (N P_i)^-beta / max_j (N P_j)^-beta [B]; j runs over the table's items of all ranks.

        The maximum belongs to the smallest N P, which an all-reduce finds.
        """
        weight, source = torch.empty(len(sample.keys), dtype=torch.float64), torch.from_numpy(sample.source)
        probability, size = torch.from_numpy(sample.probability), torch.from_numpy(sample.table_size)
        # All ranks reduce in the same order: every batch has items of every table, as `replay.limiter.check` ensures.
        for table in np.unique(sample.source).tolist():
            rows = source == table
            own_min = float((probability[rows] * size[rows]).min())
            own_weight = importance_weights(probability[rows], size[rows], beta)  # their largest is 1
            weight[rows] = own_weight * float((self.group.all_reduce_min(own_min) / own_min) ** beta)
        return weight

    def _learn_epochs(
        self, batch: Batch, epochs: tuple[Tensor | None, ...], upcoming: Callable[[], Sample | None]
    ) -> NDArray | None:
        """Learn from all minibatches in all epochs; returns the new priorities [B] if there are any.

        Metrics are those of the last minibatch.
        """
        priorities, last_loss = None, None
        if self._spec.split == "step":
            batch = steps_as_rows(batch)
        for order in epochs:
            for rows, minibatch in minibatches(batch, self._spec.minibatches, order):
                last_loss, last_minibatch = self._learn_minibatch(minibatch), minibatch
                if last_loss.priorities is not None:
                    priorities = torch.zeros_like(batch.weight) if priorities is None else priorities
                    priorities[rows] = last_loss.priorities.detach().to(priorities.dtype)
        assert last_loss is not None, "an update has at least one minibatch"
        with torch.no_grad():
            metrics = last_loss.metrics()
        if self._prefetch is not None:
            if (following := upcoming()) is not None:
                self._prefetch.begin(following, self._steps(following))
            priorities, metrics = self._read(priorities, metrics, last_minibatch)
        for name, value in metrics.items():
            self._means.add(f"loss/{name}", value.item())
        return None if priorities is None else priorities.numpy()

    def _read(
        self, priorities: Tensor | None, metrics: dict[str, Tensor], minibatch: Batch
    ) -> tuple[Tensor | None, Any]:
        """Wait for the device, and copy all that the host needs of an update at once; records its optimizer steps."""
        metrics = {name: value.float() if value.dtype == self._autocast else value for name, value in metrics.items()}
        known: Any = tree.to_torch(tree.to_numpy((priorities, metrics, tuple(self._pending_steps))))
        self._pending_steps.clear()
        priorities, metrics, steps = known
        for step in steps:
            self._record_step(step.norms, step.weight_sum, minibatch)
        return priorities, metrics

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(self._device.type, dtype=self._autocast)

    def _learn_minibatch(self, batch: Batch) -> Loss:
        """Take one step of every optimizer that is due in this update; returns the loss at the weights before the step.

        All losses are computed at the same parameters, or part after part if the algorithm is `sequential`.
        """
        with self._precision():
            parts = self._due_parts(self.algorithm.parts(self.model, self._target, batch))
        if self._spec.sequential:
            return merge_losses([self._compute_and_step([part], batch) for part in parts])
        return self._compute_and_step(parts, batch)

    def _due_parts(self, parts: Sequence[LossPart]) -> list[Part]:
        """The parts with an optimizer that steps in this update, without the losses of other optimizers."""
        specs = self._spec.optimizers
        if all(spec.every == 1 for spec in specs.values()):
            return [part.compute for part in parts]
        update = self.updates + 1  # the number of this update, as `_update_target` counts it too
        due = {name for name, spec in specs.items() if update % spec.every == 0}

        def only_due(part: LossPart) -> Part:
            def compute() -> Loss:
                loss = part.compute()
                return replace(loss, losses={name: value for name, value in loss.losses.items() if name in due})

            return compute

        return [only_due(part) for part in parts if part.optimizers is None or due.intersection(part.optimizers)]

    def _compute_and_step(self, parts: Sequence[Part], batch: Batch) -> Loss:
        """Compute parts of the loss at the current parameters, then step their optimizers."""
        compute = differentiate if self._compiled_loss is None else self._compiled_loss
        factor = None if self._scale is None else self._scale.factor
        loss, gradients = compute(as_one(parts), self._parameters, self._precision, factor)
        for name, gradient in gradients.items():
            self._optimizers[name].set_gradients(gradient)
        if not self._compiled_everywhere:
            # A barrier: another rank may compile for longer than the timeout of the gradients' all-reduce below, but
            # `all_reduce_min` waits much longer.
            self.group.all_reduce_min(0.0)
            self._compiled_everywhere = True
        self._apply_gradients({name: self._all_reduce_gradient(name) for name in loss.losses}, batch)
        return loss

    def _all_reduce_gradient(self, name: str) -> Tensor:
        """Sum or average the gradient of one optimizer over the ranks; returns its norm."""
        optimizer = self._optimizers[name]
        self.group.all_reduce_sum(optimizer.gradient)
        if self.group.size > 1 and not self._spec.optimizers[name].summed:
            optimizer.gradient.div_(self.group.size)
        if self._scale is not None:  # after the sum, so that an overflow anywhere is one everywhere
            optimizer.gradient.div_(self._scale.factor)
        return optimizer.gradient_norm()

    def _apply_gradients(self, norms: dict[str, Tensor], batch: Batch) -> None:
        """Step the optimizers in `norms`, or none of them if the norm of any gradient is not finite.

        On another device than the CPU, whether the step was skipped is known only in `_read`.
        """
        if not self._on_cpu:
            self._optimizer_steps += 1  # counted even if it is skipped
            finite = torch.stack(list(norms.values())).isfinite().all()
            for name, norm in norms.items():
                self._optimizers[name].apply_if(finite, norm)
            if self._scale is not None:
                self._scale.update(finite)
            self._pending_steps.append(_OptimizerStep(norms, self._sum_of_weights()))
            return
        known = {name: float(norm) for name, norm in norms.items()}
        if all_finite := _all_finite(known):
            self._optimizer_steps += 1
            for name, size in known.items():
                self._optimizers[name].apply(size)
        if self._scale is not None:
            self._scale.update(torch.tensor(all_finite))
        self._record_step(known, self._sum_of_weights(), batch)

    def _sum_of_weights(self) -> Any:
        """The sum of all weights: a NaN or an infinity anywhere makes it non-finite."""
        return sum(optimizer.flat.sum() for optimizer in self._optimizers.values())

    def _record_step(self, norms: dict[str, Any], weight_sum: Any, batch: Batch) -> None:
        """Record an optimizer step, or that it was skipped.

        Raise `DivergedError` if too many in a row were skipped, or if weights are not finite.
        """
        if _all_finite(norms):
            self._skipped = 0
            for name, norm in norms.items():
                self._means.add(f"learner/{name}/gradient_norm", float(norm))
        else:
            self._skipped += 1
            self.total_skipped += 1
        known = {name: float(norm) for name, norm in norms.items()}
        if self._skipped >= MAX_SKIPPED:
            raise DivergedError(f"gradients were not finite {self._skipped} times in a row", batch, known)
        if not math.isfinite(weight_sum):
            raise DivergedError(f"weights are not finite after update {self.updates + 1:,}", batch, known)

    def _target_is_due(self, previous: int) -> bool:
        """Return True if the target network is due after this update; the last one was at `previous` env steps."""
        if self._spec.target is None:
            return False
        every = Quantity.of(self._spec.target.every or 1, "updates")
        if every.unit == "updates":
            return self.updates % every.amount == 0
        return self._timeline.latest // every.amount > previous // every.amount

    def _update_target(self) -> None:
        """Update the target network; see `TargetSpec`."""
        target = self._spec.target
        assert target is not None, "a target network that is due"
        tau = 1.0 if target.tau is None else target.tau
        with torch.no_grad():
            for name, target_flat in self._target_flat.items():
                flat = self._optimizers[name].flat
                if tau < 1:
                    target_flat.lerp_(flat, tau)
                else:
                    target_flat.copy_(flat)
            for target_buffer, buffer in self._buffer_pairs:
                target_buffer.copy_(buffer)

    def load_initial_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights by their names in the model's state, before the first update, into model and target network."""
        self.model.load_state_dict({**self.model.state_dict(), **weights})
        if self._target is not None:
            self._target.load_state_dict(self.model.state_dict())

    def apply_settings(self) -> None:
        """Use the configured settings of the optimizers instead of those that `set_state` restored."""
        for optimizer in self._optimizers.values():
            optimizer.apply_settings()

    @property
    def skipping(self) -> bool:
        """True if the last optimizer step was skipped because a gradient was not finite."""
        return self._skipped > 0

    @property
    def position(self) -> tuple[int, int]:
        """Updates so far, and optimizer steps of the update in progress: the rank with the most is the one to copy."""
        return self.updates, self._optimizer_steps

    def join(self, group: LearnerGroup, rank: int) -> None:
        """Join a group as `rank`. All ranks must have loaded the same state before; all but 0 are reseeded."""
        self.group, self._optimizer_steps, self._compiled_everywhere = group, 0, self._compiled_loss is None
        self._rank = rank
        if rank:
            seeds = np.random.SeedSequence([self._seed, rank, self.updates])
            self._rng = np.random.Generator(np.random.PCG64(seeds))

    def recent_losses(self) -> dict[str, float]:
        """Means of all losses and other measurements of batches since the last call of `drain_metrics`."""
        return {name: value for name, value in self._means.peek().items() if name.startswith("loss/")}

    def drain_metrics(self) -> dict[str, float]:
        """Means since the last call."""
        means = self._means.drain()
        means["learner/skipped"] = self.total_skipped
        if self._scale is not None:
            means["learner/loss_scale"] = float(self._scale.factor)
        if self._compiled_loss is not None:
            means["learner/compiled"] = int(self._compiled_loss.pays)
        means |= {f"learner/{name}/learning_rate": opt.learning_rate for name, opt in self._optimizers.items()}
        return means

    def get_state(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "skipped": [self._skipped, self.total_skipped],
            "rng": self._rng.bit_generator.state,
            "model": dict(self.model.state_dict()),
            "target": {} if self._target is None else dict(self._target.state_dict()),
            "optimizers": {name: optimizer.get_state() for name, optimizer in self._optimizers.items()},
            "means": self._means.get_state(),
            "timeline": self._timeline.get_state(),
            **({} if self._scale is None else {"loss_scale": self._scale.get_state()}),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self._skipped, self.total_skipped = state["skipped"]
        self._rng.bit_generator.state = state["rng"]
        self.model.load_state_dict(state["model"])
        if self._target is not None:
            self._target.load_state_dict(state["target"])
        for name, optimizer in self._optimizers.items():
            optimizer.set_state(state["optimizers"][name])
        self._means.set_state(state["means"])
        self._timeline.set_state(state["timeline"])
        if self._scale is not None and "loss_scale" in state:  # else the run was in another precision
            self._scale.set_state(state["loss_scale"])
