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
from starling.nets.normalizers import Normalized, ObservationNormalizer
from starling.types import Resets, Tensor, Trajectory, Tree

Outputs = dict[str, Any]
"""Output of every head by name: a tensor or a distribution."""

SHARED = "shared"
"""Name of the trunk if all heads share one."""

Run = Callable[..., tuple[Tensor, Tree]]
Previous = tuple[Tensor | None, dict[str, Tensor] | None]
"""The previous actions [..., *shape] and rewards [...] per stream; None if no network has them as inputs."""


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


class Trunk(nn.Module):
    """Torso and core: maps observations and what was before them to features."""

    def __init__(self, torso: nn.Module, core: Any, previous: PreviousInputs | None = None) -> None:
        super().__init__()
        self.torso = torso
        self.core = core
        self.previous = previous  # None: the core has no inputs but the torso's output
        self.recurrent = bool(tree.leaves(core.initial_state(1)))

    def step(self, obs: Tree, before: Previous, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """One time step: obs [B, ...], first [B] to features [B, F] and the next state."""
        y, state = self.core.step(self._inputs(self.torso(obs), before, first), first, state)
        return y, state

    def unroll(
        self, obs: Tree, before: Previous, first: Tensor, state: Tree, resets: Resets | None = None
    ) -> tuple[Tensor, Tree]:
        """A sequence: obs [T, B, ...], first [T, B] to features [T, B, F] and the last state."""
        flat = tree.map(lambda leaf: leaf.flatten(0, 1), obs)  # [T * B, ...]
        x = self.torso(flat).unflatten(0, first.shape)  # [T, B, F]
        known = {} if resets is None or not getattr(self.core, "takes_resets", False) else {"resets": resets}
        y, state = self.core(self._inputs(x, before, first), first, state, **known)
        return y, state

    def _inputs(self, x: Tensor, before: Previous, first: Tensor) -> Tensor:
        return x if self.previous is None else torch.cat((x, self.previous(first, *before)), dim=-1)


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
        trunk_of: dict[str, str],
        normalizer: ObservationNormalizer | None = None,
        trained: dict[str | None, list[str]] | None = None,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.reward_scales = nn.ModuleDict()  # per stream, added and used by an algorithm
        self.reset_values = nn.ModuleDict()  # per non-episodic stream, added by Q-learning
        self.extra_carry: dict[str, torch.dtype] = {}  # further numbers in the carry, which the network does not use
        self.trunks = nn.ModuleDict(trunks)
        self.heads = nn.ModuleDict(heads)
        self.trunk_of = trunk_of  # the trunk of every head, by name
        self.shared = SHARED in trunks
        self.recurrent = any(trunk.recurrent for trunk in trunks.values())
        self._trained = trained or {}  # modules by the name of their optimizer, if `nets` gives them several

    def initial_carry(self, batch_size: int) -> dict[str, Tree]:
        """The carry before the first observation, all zero: "state" if recurrent, "action" and "rewards" if inputs.

        Entries of `extra_carry` are in it too.
        """
        device = next(self.parameters()).device
        carry: dict[str, Tree] = {
            name: torch.zeros(batch_size, dtype=dtype, device=device) for name, dtype in self.extra_carry.items()
        }
        for trunk in self._trunks.values():
            carry |= {} if trunk.previous is None else trunk.previous.initial(batch_size, device)
        return {"state": self._initial_state(batch_size), **carry} if self.recurrent else carry

    def step(self, obs: Tree, first: Tensor, carry: dict[str, Tree], only: Sequence[str] = ()) -> tuple[Outputs, Tree]:
        """Compute outputs [B, ...] for obs [B, ...] and the next recurrent state (None without one).

        `only` selects heads; the trunks of the others are skipped too, unless they are recurrent.
        """
        features, state = self.encode(obs, first, carry, only)
        return self.decode(features, only), state

    def encode(self, obs: Tree, first: Tensor, carry: dict[str, Tree], only: Sequence[str] = ()) -> tuple[Tree, Tree]:
        """Compute the features [B, F] of the heads (a dict by trunk if there are several) and the next state."""
        return self._through(Trunk.step, obs, (carry.get("action"), carry.get("rewards")), first, carry, only)

    def decode(self, features: Tree, only: Sequence[str] = ()) -> Outputs:
        """Apply all heads, or `only` these, to `features` [..., F] as returned by `encode` or `unroll`."""
        return {name: self.heads[name](self.features_of(name, features)) for name in only or self.heads}

    def features_of(self, head: str, features: Tree) -> Tensor:
        """Features [..., F] of one head, from the result of `encode` or `unroll`."""
        mine: Tensor = features if self.shared else features[self.trunk_of[head]]
        return mine

    def parameters_of(self, optimizer: str) -> list[nn.Parameter]:
        """The parameters that belong to one of several optimizers, by the name of its network in `nets`."""
        parts = self._trained.get(optimizer, ())
        return [parameter for part in parts for parameter in self.get_submodule(part).parameters()]

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
        before = self._before(len(first), action, rewards, carry)
        run = Trunk.unroll if resets is None else partial(Trunk.unroll, resets=resets)
        features, state = self._through(run, obs, before, first, carry, only)
        return self.decode(features, only), features, state

    def unroll_trajectory(self, trajectory: Trajectory[Tensor], only: Sequence[str] = ()) -> tuple[Outputs, Tree, Tree]:
        """`unroll` over all observations of a trajectory."""
        at = trajectory
        return self.unroll(at.obs, at.first, at.action, at.rewards, at.carry, only, at.resets)

    def _through(
        self,
        run: Run,
        obs: Tree,
        before: Previous,
        first: Tensor,
        carry: dict[str, Tree],
        only: Sequence[str],
    ) -> tuple[Tree, Tree]:
        """Features and state of the shared trunk, or dicts of them by trunk."""
        if isinstance(obs, Normalized):
            obs = obs.obs
        elif self.normalizer is not None:
            obs = self.normalizer(obs)
        state = carry["state"] if self.recurrent else None
        if self.shared:
            return run(self._trunks[SHARED], obs, before, first, state)
        wanted = {self.trunk_of[head] for head in only or self.heads}
        features: dict[str, Tensor] = {}
        states: dict[str, Tree] = dict.fromkeys(self._trunks)  # None for those that are not recurrent
        for name, trunk in self._trunks.items():
            if name in wanted or trunk.recurrent:
                features[name], states[name] = run(trunk, obs, before, first, state and state[name])
        return features, states if self.recurrent else None

    def _before(self, length: int, action: Tree, rewards: dict[str, Tensor], carry: dict[str, Tree]) -> Previous:
        """Actions and rewards before each of `length` observations, [T', B, ...], if any network has them as inputs."""
        action_tm1 = _shifted(carry["action"], action, length) if "action" in carry else None
        if "rewards" not in carry:
            return action_tm1, None
        return action_tm1, {name: _shifted(r, rewards[name], length) for name, r in carry["rewards"].items()}

    def _initial_state(self, batch_size: int) -> Tree:
        states = {name: trunk.core.initial_state(batch_size) for name, trunk in self._trunks.items()}
        return states[SHARED] if self.shared else states

    @property
    def _trunks(self) -> dict[str, Trunk]:
        return cast("dict[str, Trunk]", self.trunks._modules)
