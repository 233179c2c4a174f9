"""Burn-in: the first steps of a replayed sequence only refresh its stale recurrent state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from starling import tree
from starling.nets.network import Network, Outputs
from starling.ops.devices import on_cpu
from starling.types import Resets, Tensor, Trajectory, Tree


@dataclass(frozen=True)
class Inputs:
    """The part of a trajectory that a network takes as input."""

    obs: Tree  # [T', B, ...]
    first: Tensor  # [T', B]
    action: Tree  # [T' - 1 or more, B, ...]
    rewards: dict[str, Tensor]  # [T' - 1 or more, B] per stream
    carry: dict[str, Tree]  # [B, ...] before obs[0]
    resets: Resets | None = None

    def cut(self, at: int) -> tuple[Inputs, Inputs]:
        """Split into the observations before `at` and those from `at` on; the latter still lack the recurrent state."""
        carry = dict(self.carry)
        if "action" in carry:
            carry["action"] = tree.map(lambda leaf: leaf[at - 1], self.action)
        if "rewards" in carry:
            carry["rewards"] = {name: leaf[at - 1] for name, leaf in self.rewards.items()}
        steps = (self.obs, self.first, self.action, self.rewards)
        early, late = (
            (None, None)
            if self.resets is None
            else (self.resets.between(0, at), self.resets.between(at, len(self.first)))
        )
        before = Inputs(*tree.map(lambda leaf: leaf[:at], steps), self.carry, early)
        return before, Inputs(*tree.map(lambda leaf: leaf[at:], steps), carry, late)

    def rows(self, index: Tensor) -> Inputs:
        """Select rows by index [b]."""
        steps = tree.map(lambda leaf: leaf.index_select(1, index), (self.obs, self.first, self.action, self.rewards))
        return Inputs(*steps, tree.map(lambda leaf: leaf.index_select(0, index), self.carry), self.resets)

    def unroll(self, model: Network) -> tuple[Outputs, Tree]:
        """Return outputs [T', B, ...] and the recurrent state after the last observation."""
        outputs, _, state = model.unroll(
            self.obs, self.first, self.action, self.rewards, self.carry, resets=self.resets
        )
        return outputs, state


def unroll_burnt_in(model: Network, trajectory: Trajectory[Tensor], burn_in: int) -> Outputs:
    """Compute outputs [T+1, B, ...], the first `burn_in` of them without gradient.

    If a sequence starts an episode, its state is not stale: gradients then flow back to its first step.
    """
    at = trajectory
    inputs = Inputs(at.obs, at.first, at.action, at.rewards, at.carry, at.resets)
    if burn_in == 0:
        return inputs.unroll(model)[0]
    prefix, rest = inputs.cut(burn_in)
    outputs, state = _prefix(model, prefix, trajectory.first[0])
    return tree.concat([outputs, replace(rest, carry={**rest.carry, "state": state}).unroll(model)[0]], axis=0)


def _prefix(model: Network, prefix: Inputs, begins: Tensor) -> tuple[Outputs, Tree]:
    """Outputs [burn_in, B, ...] and state [B, ...], with a gradient only in rows that start an episode [B].

    On a CPU only these rows are computed with gradient. Elsewhere all are: to select rows, the host would have to wait.
    """
    if not on_cpu(begins):
        outputs, state = prefix.unroll(model)
        return tree.map(lambda leaf: _gradient_in(begins, leaf, 1), outputs), tree.map(
            lambda leaf: _gradient_in(begins, leaf, 0), state
        )
    others = ~begins
    if others.all():
        with torch.no_grad():
            return prefix.unroll(model)
    known, stale = begins.nonzero().flatten(), others.nonzero().flatten()
    parts = [prefix.rows(known).unroll(model)]
    if len(stale):
        with torch.no_grad():
            parts.append(prefix.rows(stale).unroll(model))
    place = torch.cat([known, stale]).argsort()
    outputs = tree.concat([outputs for outputs, _ in parts], axis=1)
    state = tree.concat([state for _, state in parts], axis=0)
    return tree.map(lambda leaf: leaf.index_select(1, place), outputs), tree.map(
        lambda leaf: leaf.index_select(0, place), state
    )


def _gradient_in(rows: Tensor, x: Tensor, axis: int) -> Tensor:
    """x with a gradient only where `rows` [B] is True; B is the axis `axis` of x."""
    return torch.where(rows.view(-1, *[1] * (x.dim() - axis - 1)), x, x.detach())
