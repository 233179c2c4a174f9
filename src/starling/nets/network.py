"""The network of an agent: torso, core, and heads, applied to one time step or to a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.nets.encoders import Flat, OneHot
from starling.nets.normalisers import Normalised, ObservationNormaliser
from starling.types import Resets, Tensor, Trajectory, Tree

Outputs = dict[str, Any]
"""Output of every head by name: a tensor or a distribution."""

SHARED = "shared"
"""Name of the trunk if all heads share one."""

Run = Callable[..., tuple[Tensor, Tree]]


class Trunk(nn.Module):
    """Torso and core: maps observations and extra inputs of the core to features."""

    def __init__(self, torso: nn.Module, core: Any) -> None:
        super().__init__()
        self.torso = torso
        self.core = core

    def step(self, obs: Tree, extra: Tensor | None, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """One time step: obs [B, ...], extra [B, E], first [B] to features [B, F] and the next state."""
        x = self.torso(obs)
        y, state = self.core.step(x if extra is None else torch.cat((x, extra), dim=-1), first, state)
        return y, state

    def unroll(
        self, obs: Tree, extra: Tensor | None, first: Tensor, state: Tree, resets: Resets | None = None
    ) -> tuple[Tensor, Tree]:
        """A sequence: obs [T, B, ...], extra [T, B, E], first [T, B] to features [T, B, F] and the last state."""
        flat = tree.map(lambda leaf: leaf.flatten(0, 1), obs)  # [T * B, ...]
        x = self.torso(flat).unflatten(0, first.shape)  # [T, B, F]
        known = {} if resets is None or not getattr(self.core, "takes_resets", False) else {"resets": resets}
        y, state = self.core(x if extra is None else torch.cat((x, extra), dim=-1), first, state, **known)
        return y, state


class PreviousInputs(nn.Module):
    """Encode the previous action (one-hot if discrete) and rewards as one vector, zero when an episode begins."""

    def __init__(self, space: spaces.Space[Any], encoder: Flat | OneHot | None, streams: tuple[str, ...]) -> None:
        super().__init__()
        self.shape = space.shape or ()
        self.dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int64
        self.encoder = encoder  # None: the action is not an input
        self.streams = streams  # empty: rewards are not an input
        self.size = (0 if encoder is None else encoder.size) + len(streams)

    def initial(self, batch_size: int, device: torch.device) -> dict[str, Tree]:
        """Entries of the carry before the first step, all zero: action [B, ...], rewards [B] per stream."""
        carry: dict[str, Tree] = {}
        if self.encoder is not None:
            carry["action"] = torch.zeros(batch_size, *self.shape, dtype=self.dtype, device=device)
        if self.streams:
            carry["rewards"] = {name: torch.zeros(batch_size, device=device) for name in self.streams}
        return carry

    def forward(self, first: Tensor, action: Tensor | None, rewards: dict[str, Tensor] | None) -> Tensor:
        """Encode the previous action [..., *shape] and rewards [...] as [..., size]; zero if first [...]."""
        parts = []
        if self.encoder is not None:
            parts.append(self.encoder(action))
        if self.streams:
            assert rewards is not None
            parts.append(torch.stack([rewards[name] for name in self.streams], dim=-1).float())
        return torch.cat(parts, dim=-1).masked_fill(first.unsqueeze(-1), 0.0)


def _shifted(before: Tensor, after: Tensor, length: int) -> Tensor:
    """Shift in time: `before` [B, ...], then the first T' - 1 of `after`: [T', B, ...]."""
    if len(after) < length - 1:
        raise ValueError(f"{length} observations need {length - 1} previous actions and rewards, not {len(after)}")
    return torch.cat((before.unsqueeze(0).to(after.dtype), after[: length - 1]))


class Network(nn.Module):
    """Trunks and heads. `step` is for acting, `unroll` for training on a sequence; both compute the same outputs."""

    def __init__(
        self,
        trunks: dict[str, Trunk],
        heads: dict[str, nn.Module],
        previous: PreviousInputs | None,
        normaliser: ObservationNormaliser | None = None,
    ) -> None:
        super().__init__()
        self.normaliser = normaliser
        self.reward_scales = nn.ModuleDict()  # per stream, added and used by an algorithm
        self.reset_values = nn.ModuleDict()  # per non-episodic stream, added by Q-learning
        self.trunks = nn.ModuleDict(trunks)
        self.heads = nn.ModuleDict(heads)
        self.previous = previous
        self.shared = SHARED in trunks
        self.recurrent = bool(tree.leaves(self._initial_state(1)))

    def initial_carry(self, batch_size: int) -> dict[str, Tree]:
        """The carry before the first observation, all zero: "state" if recurrent, "action" and "rewards" if inputs."""
        device = next(self.parameters()).device
        carry = {} if self.previous is None else self.previous.initial(batch_size, device)
        return {"state": self._initial_state(batch_size), **carry} if self.recurrent else carry

    def step(self, obs: Tree, first: Tensor, carry: dict[str, Tree], only: Sequence[str] = ()) -> tuple[Outputs, Tree]:
        """Compute outputs [B, ...] for obs [B, ...] and the next recurrent state (None without one).

        `only` selects heads; the trunks of the others are skipped too, unless the network is recurrent.
        """
        features, state = self.encode(obs, first, carry, only)
        return self.decode(features, only), state

    def encode(self, obs: Tree, first: Tensor, carry: dict[str, Tree], only: Sequence[str] = ()) -> tuple[Tree, Tree]:
        """Compute the features [B, F] of the heads (a dict by head if trunks are separate) and the next state."""
        extra = None
        if self.previous is not None:
            extra = self.previous(first, carry.get("action"), carry.get("rewards"))
        return self._through(Trunk.step, obs, extra, first, carry, () if self.recurrent else only)

    def decode(self, features: Tree, only: Sequence[str] = ()) -> Outputs:
        """Apply all heads, or `only` these, to `features` [..., F] as returned by `encode` or `unroll`."""
        heads = {name: self.heads[name] for name in only or self.heads}
        if self.shared:
            return {name: head(features) for name, head in heads.items()}
        return {name: head(features[name]) for name, head in heads.items()}

    def unroll(
        self,
        obs: Tree,
        first: Tensor,
        action: Tree,
        rewards: dict[str, Tensor],
        carry: dict[str, Tree],
        only: Sequence[str] = (),
        resets: Resets | None = None,
    ) -> tuple[Outputs, Tree, Tree]:
        """Compute outputs [T', B, ...], features [T', B, F], and the last state for obs [T', B, ...], first [T', B].

        The previous action and rewards of step 0 come from the carry, those of step t from step t - 1 of `action` and
        `rewards` [T' - 1 or more, B, ...]: the fields of a trajectory fit with T + 1 or T observations. `only` is as in
        `step`; `resets` are those of `first`, if known.
        """
        extra = self._extra(first, action, rewards, carry)
        run = Trunk.unroll if resets is None else partial(Trunk.unroll, resets=resets)
        features, state = self._through(run, obs, extra, first, carry, () if self.recurrent else only)
        return self.decode(features, only), features, state

    def unroll_trajectory(self, steps: Trajectory[Tensor], only: Sequence[str] = ()) -> tuple[Outputs, Tree, Tree]:
        """`unroll` over all observations of a trajectory."""
        return self.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry, only, steps.resets)

    def _through(
        self,
        run: Run,
        obs: Tree,
        extra: Tensor | None,
        first: Tensor,
        carry: dict[str, Tree],
        only: Sequence[str],
    ) -> tuple[Tree, Tree]:
        """Features and state of the shared trunk, or dicts of them by head."""
        if isinstance(obs, Normalised):
            obs = obs.obs
        elif self.normaliser is not None:
            obs = self.normaliser(obs)
        state = carry["state"] if self.recurrent else None
        if self.shared:
            return run(self._trunks[SHARED], obs, extra, first, state)
        features, states = {}, {}
        for name in only or self._trunks:
            trunk = self._trunks[name]
            features[name], states[name] = run(trunk, obs, extra, first, state and state[name])
        return features, states if self.recurrent else None

    def _extra(self, first: Tensor, action: Tree, rewards: dict[str, Tensor], carry: dict[str, Tree]) -> Tensor | None:
        if self.previous is None:
            return None
        length = len(first)
        action_tm1, r_tm1 = None, None  # [T', B, ...]
        if self.previous.encoder is not None:
            action_tm1 = _shifted(carry["action"], action, length)
        if self.previous.streams:
            r_tm1 = {name: _shifted(carry["rewards"][name], rewards[name], length) for name in self.previous.streams}
        extra: Tensor = self.previous(first, action_tm1, r_tm1)
        return extra

    def _initial_state(self, batch_size: int) -> Tree:
        states = {name: trunk.core.initial_state(batch_size) for name, trunk in self._trunks.items()}
        return states[SHARED] if self.shared else states

    @property
    def _trunks(self) -> dict[str, Trunk]:
        return cast("dict[str, Trunk]", self.trunks._modules)
