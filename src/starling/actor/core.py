"""The actor core: the network with the recurrent states and noise of its envs, and the recorder.

The same class sits in an actor or in an inference server; the env loop only sends observations and gets actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from starling import tree
from starling.actor.noise import Noise
from starling.actor.recorder import FragmentBuffer, FragmentShape, Recorder, learning_rewards
from starling.algos.base import ActInput, ActOutput, Algorithm, IntrinsicInput
from starling.errors import require, to_count
from starling.types import EnvStep, Fragment, NDArray, Progress, Tree


class ExperienceSink(Protocol):
    """Gives an actor core credits and weights, and takes its fragments."""

    def begin(self, group: int) -> FragmentBuffer | None:
        """A credit for this group to begin a fragment: the buffer to write into, or None if there is none yet."""
        ...

    def refresh(self) -> Progress:
        """Load the newest weights into the model; returns the training progress at which they were published."""
        ...

    def insert(self, group: int, fragment: Fragment) -> None:
        """Send a full fragment; its buffer is given back."""
        ...


INTRINSIC_NOISE = 0x5EED
"""Changes the seed for the noise of intrinsic rewards, so that it differs from that of actions."""


class EnvGroup:
    """The state that a policy keeps for the B envs of one env loop.

    This is their latest observations, the carry (recurrent state, last action and rewards, as far as the network takes
    them as input), the state of intrinsic rewards, and the noise counter.
    """

    def __init__(
        self, env_index: NDArray, carry: Tree, intrinsic_state: Tree, seed: int, noise_start: int, arm: int
    ) -> None:
        self.env_index = env_index  # [B] int64
        self.arm = torch.full((len(env_index),), arm)  # int64: the policy that each env plays without exploration
        self.noise, self.intrinsic_noise = Noise(seed, env_index), Noise(seed ^ INTRINSIC_NOISE, env_index)
        self.carry = carry  # numpy [B, ...]
        self.intrinsic_state = intrinsic_state  # tensors [B, ...]
        self.action: NDArray | None = None  # [B, ...] the last one
        self.step = noise_start  # noise counter, which every action increments
        self.latest: EnvStep | None = None  # the current observations, with the results of the last actions

    def advance(self, output: ActOutput) -> None:
        """Increment the noise counter, and update the carry with an action; its rewards follow with `set_rewards`."""
        self.step += 1
        self.action = output.action
        if "state" in self.carry:
            self.carry["state"] = output.state
        if "action" in self.carry:
            self.carry["action"] = output.action

    def set_rewards(self, rewards: dict[str, NDArray]) -> None:
        """Complete the carry with the rewards [B] of the last action, per stream."""
        if "rewards" in self.carry:
            self.carry["rewards"] = {name: rewards[name] for name in self.carry["rewards"]}

    def get_state(self) -> dict[str, Any]:
        arrays = dict(tree.items((self.carry, self.latest)))
        return {
            "step": self.step,
            "arrays": {name: np.array(array) for name, array in arrays.items()},
            "intrinsic_state": {name: tensor.cpu().numpy().copy() for name, tensor in tree.items(self.intrinsic_state)},
            "action": None if self.action is None else np.array(self.action),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        assert self.latest is not None, "a group is restored after its env loop has started"
        self.step = to_count(state["step"])
        saved = state["arrays"]  # a state of an earlier version lacks newer fields of `EnvStep`; these are not restored
        restored = [(leaf, saved.get(name, leaf)) for name, leaf in tree.items((self.carry, self.latest))]
        for leaf, array in restored:
            same = array.shape == leaf.shape and array.dtype.kind == leaf.dtype.kind
            require(same, f"{array.dtype} {array.shape} of envs that have {leaf.dtype} {leaf.shape}")
        arrays = iter(array for _, array in restored)
        self.carry, self.latest = tree.map(lambda _: next(arrays), (self.carry, self.latest))
        for name, tensor in tree.items(self.intrinsic_state):
            tensor.copy_(torch.from_numpy(state["intrinsic_state"][name]))
        self.action = state.get("action")  # states of earlier versions have none


class Policy:
    """A network that acts for groups of envs."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Any,
        *,
        num_envs: int,
        explore: bool,
        autocast: torch.dtype | None = None,  # a lower precision, used where autocast finds it safe
    ) -> None:
        self.algorithm, self.model = algorithm, model
        self._autocast = autocast
        self.explore, self.num_envs = explore, num_envs
        self.progress = Progress()
        self.arm = 0  # the policy that is played without exploration, of an algorithm that has several
        self._device = next(iter(model.parameters())).device
        self._noise_sizes: set[int] = set()  # that the algorithm asks for, on another device than the CPU
        self._intrinsic_noise_sizes: set[int] = set()

    def new_group(self, env_index: NDArray, seed: int, noise_start: int = 0) -> EnvGroup:
        """A group for the envs with these indices [B], which begin an episode; their noise counter is `noise_start`."""
        num_envs = len(env_index)
        carry = tree.map(np.array, tree.to_numpy(self.model.initial_carry(num_envs)))
        intrinsic_state = tree.map(lambda tensor: tensor.to(self._device), self.algorithm.intrinsic_state(num_envs))
        return EnvGroup(env_index, carry, intrinsic_state, seed, noise_start, self.arm)

    def compute_rewards(self, group: EnvGroup, clip: float | None) -> dict[str, NDArray]:
        """Compute the rewards [B] of the last actions per stream, and put them into the carry.

        Only the environment's is clipped. Call it once per step: it advances the state of intrinsic rewards.
        """
        rewards = learning_rewards(_latest(group), clip)
        if group.intrinsic_state:
            rewards |= self._intrinsic_rewards(group)
        group.set_rewards(rewards)
        return rewards

    def _intrinsic_rewards(self, group: EnvGroup) -> dict[str, NDArray]:
        earned: Any = self._earn(group, tree.to_torch(self._seen(group), self._device))
        rewards: dict[str, NDArray]
        rewards, carry = tree.to_numpy((earned, group.intrinsic_state.get("carry", {})))
        group.carry |= tree.map(np.array, carry)  # copies: the state is changed in place
        return rewards

    def infer(self, groups: Sequence[EnvGroup]) -> list[ActOutput]:
        """Actions for all groups in one forward pass; changes no state."""
        return _split(tree.to_numpy(self._act(groups, tree.to_torch(self._inputs(groups), self._device))), groups)

    def step(self, groups: Sequence[EnvGroup], clip: float | None) -> tuple[list[dict[str, NDArray]], list[ActOutput]]:
        """`compute_rewards` of every group, then `infer`.

        With intrinsic rewards on another device than the CPU, there is one copy to it and one back in all.
        """
        if self._device.type == "cpu" or not any(group.intrinsic_state for group in groups):
            return [self.compute_rewards(group, clip) for group in groups], self.infer(groups)
        rewards = [learning_rewards(_latest(group), clip) for group in groups]
        for group, extrinsic in zip(groups, rewards, strict=True):
            group.set_rewards({**group.carry.get("rewards", {}), **extrinsic})  # those of other streams follow
        seen = tuple(self._seen(group) for group in groups)
        inputs, seen = tree.to_torch((self._inputs(groups), seen), self._device)
        earned = tuple(self._earn(group, part) for group, part in zip(groups, seen, strict=True))
        carries = tuple(group.intrinsic_state.get("carry", {}) for group in groups)
        inputs["carry"] = _updated(inputs["carry"], tree.concat(carries, axis=0), tree.concat(earned, axis=0))
        result: Any = (self._act(groups, inputs), earned, carries)
        output, all_earned, all_carries = tree.to_numpy(result)
        for group, mine, intrinsic, carry in zip(groups, rewards, all_earned, all_carries, strict=True):
            group.carry |= carry
            mine |= intrinsic
            group.set_rewards(mine)
        return rewards, _split(output, groups)

    def _inputs(self, groups: Sequence[EnvGroup]) -> dict[str, Tree]:
        """The arrays of `ActInput` for all groups."""
        steps = [_latest(group) for group in groups]
        return {
            "obs": tree.concat([step.obs for step in steps], axis=0),
            "first": tree.concat([step.first for step in steps], axis=0),
            "carry": tree.concat([group.carry for group in groups], axis=0),
            "env_index": tree.concat([group.env_index for group in groups], axis=0),
            "noise": {n: _noise(groups, n) for n in self._noise_sizes},
        }

    def _act(self, groups: Sequence[EnvGroup], inputs: dict[str, Any]) -> ActOutput:
        """The algorithm's actions, given `_inputs` on the device."""
        draw = partial(self._drawn, inputs.pop("noise"), self._noise_sizes, lambda n: _noise(groups, n))
        given = ActInput(**inputs, num_envs=self.num_envs, progress=self.progress, explore=self.explore, noise=draw)
        lower = self._autocast
        precision = nullcontext() if lower is None else torch.autocast(self._device.type, dtype=lower)
        with torch.inference_mode(), precision:
            acted = self.algorithm.act(self.model, given)
        return tree.map(_as_float32, acted) if lower is not None else acted

    def _seen(self, group: EnvGroup) -> dict[str, Tree]:
        """The arrays of `IntrinsicInput`."""
        step = _latest(group)
        ended = (step.terminated | step.truncated) & ~step.cut_short
        return {
            "obs": step.obs,
            "first": step.first,
            "ended": ended,
            "begins": np.flatnonzero(step.first),
            "ends": np.flatnonzero(ended),
            "action": group.action,
            "reward": step.reward,
            "env_index": group.env_index,
            "arm": group.arm.numpy(),
            "noise": {n: group.intrinsic_noise.uniform(group.step, n) for n in self._intrinsic_noise_sizes},
        }

    def _earn(self, group: EnvGroup, seen: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The algorithm's intrinsic rewards, given `_seen` on the device."""
        draw = partial(
            self._drawn,
            seen.pop("noise"),
            self._intrinsic_noise_sizes,
            lambda n: group.intrinsic_noise.uniform(group.step, n),
        )
        last = IntrinsicInput(**seen, explore=self.explore, noise=draw)
        with torch.inference_mode():
            self.algorithm.after_step(last, group.intrinsic_state)
            return self.algorithm.intrinsic_rewards(self.model, last, group.intrinsic_state)

    def _drawn(
        self, known: dict[int, torch.Tensor], sizes: set[int], draw: Callable[[int], NDArray], n: int
    ) -> torch.Tensor:
        """Noise [B, n]; on another device than the CPU it came with the inputs if it was asked for before."""
        if n in known:
            return known[n]
        if self._device.type != "cpu":
            sizes.add(n)
        return torch.from_numpy(draw(n)).to(self._device)


def _latest(group: EnvGroup) -> EnvStep:
    assert group.latest is not None, "a group acts after its first observation"
    return group.latest


def _noise(groups: Sequence[EnvGroup], n: int) -> NDArray:
    drawn = [group.noise.uniform(group.step, n) for group in groups]
    return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)


def _updated(carry: dict[str, Tree], intrinsic: dict[str, Tree], rewards: dict[str, torch.Tensor]) -> dict[str, Tree]:
    """The carry [B, ...] with what the last step has changed: the intrinsic state's entries, and intrinsic rewards."""
    carry = carry | intrinsic
    if "rewards" in carry:
        carry["rewards"] = {name: rewards.get(name, given) for name, given in carry["rewards"].items()}
    return carry


def _split(output: ActOutput, groups: Sequence[EnvGroup]) -> list[ActOutput]:
    """The rows of each group."""
    if len(groups) == 1:
        return [output]
    ends = np.cumsum([len(group.env_index) for group in groups]).tolist()
    starts = [0, *ends[:-1]]
    return [tree.map(lambda leaf, a=a, b=b: leaf[a:b], output) for a, b in zip(starts, ends, strict=True)]


def _as_float32(leaf: torch.Tensor) -> torch.Tensor:
    """Return a lower precision as float32, which is recorded; other tensors as they are."""
    return leaf.float() if leaf.dtype in (torch.bfloat16, torch.float16) else leaf


@dataclass(frozen=True)
class GroupSpec:
    """Which envs form a group, i.e. share one env loop, and the incarnation of that loop; `EnvGroup` is its state."""

    env_index: NDArray  # [B] int64: indices of the envs in the run
    incarnation: int = 0  # number of restarts of the env loop

    MAX_INCARNATIONS: ClassVar[int] = 2**16

    def actor_id(self, index: int) -> int:
        """An id per incarnation of group `index`, so that a table never takes a new fragment for an old one."""
        return index * self.MAX_INCARNATIONS + self.incarnation

    @property
    def noise_start(self) -> int:
        """First noise counter of this incarnation: no incarnation repeats the noise of another."""
        return self.incarnation << 32


def next_incarnation(incarnations: Mapping[Any, int]) -> int:
    """An incarnation that no group of an earlier run has had."""
    return 1 + max(incarnations.values(), default=-1)


@dataclass(frozen=True)
class _Inferred:
    """An output of the network and the version of its weights."""

    output: ActOutput
    policy_version: int


class PolicyCore:
    """A policy that also records. It sends fragments to its sink, and begins each only with a credit."""

    def __init__(
        self,
        policy: Policy,
        shape: FragmentShape,
        sink: ExperienceSink,
        *,
        groups: Mapping[int, GroupSpec],
        seed: int,
        synchronous: bool,
        reward_clip: float | None,
    ) -> None:
        self.policy, self.sink = policy, sink
        self._shape, self._seed = shape, seed
        self._synchronous, self._reward_clip = synchronous, reward_clip
        self._specs = dict(groups)
        self._groups: dict[int, EnvGroup] = {}
        self._recorders: dict[int, Recorder] = {}
        self._pending: dict[int, _Inferred] = {}  # not acted upon yet, e.g. for want of a credit for the next fragment
        for index, spec in groups.items():
            self.start_incarnation(index, spec)

    @property
    def incarnations(self) -> dict[int, int]:
        """The incarnation of every group."""
        return {index: spec.incarnation for index, spec in self._specs.items()}

    @property
    def recording(self) -> int:
        """Number of envs with a fragment under way."""
        return sum(len(self._specs[index].env_index) for index, recorder in self._recorders.items() if recorder.open)

    def start_incarnation(self, index: int, spec: GroupSpec) -> None:
        """Start a group, or restart it after its env loop was lost: all but its current observations is forgotten."""
        before = self._groups.get(index)
        self._specs[index] = spec
        self._groups[index] = self.policy.new_group(spec.env_index, self._seed, spec.noise_start)
        self._groups[index].latest = before.latest if before else None
        self._recorders[index] = Recorder(self._shape, spec.env_index, actor_id=spec.actor_id(index))
        self._pending.pop(index, None)

    def abandon(self, index: int) -> None:
        """Forget the open fragment of a group; it acts again only after `start_incarnation`."""
        self._recorders[index].abandon()
        self._pending.pop(index, None)

    def observe(self, index: int, step: EnvStep) -> None:
        """Set the results of the last actions of a group; they are recorded when it acts next."""
        self._groups[index].latest = step

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        """Actions for these groups; None for a group that waits for a credit."""
        fresh = [i for i in indices if i not in self._pending]
        if fresh:
            rewards, outputs = self.policy.step([self._groups[i] for i in fresh], self._reward_clip)
            self._record_results(fresh, rewards)
            self._set_pending(fresh, outputs)
        return [self._act_one(i) for i in indices]

    def _set_pending(self, indices: Sequence[int], outputs: Sequence[ActOutput]) -> None:
        updates = self.policy.progress.updates
        self._pending.update({i: _Inferred(output, updates) for i, output in zip(indices, outputs, strict=True)})

    def _record_results(self, indices: Sequence[int], rewards: Sequence[dict[str, NDArray]]) -> None:
        """Record the results of the last actions, with the rewards of every stream."""
        for index, earned in zip(indices, rewards, strict=True):
            if self._recorders[index].open:
                self._recorders[index].result(_latest(self._groups[index]), earned)

    def _act_one(self, index: int) -> Tree | None:
        """Record and return the pending action of a group, or return None if it has no credit for a new fragment.

        A full fragment is closed first, with the current observation, which only bootstraps. Before a new one begins,
        the newest weights are loaded. Its first action was inferred before, with the previous weights, whose version is
        recorded for the whole fragment; only if the learner is synchronous (`max_lag=0`) is it inferred again.
        """
        group, recorder = self._groups[index], self._recorders[index]
        obs, first = _latest(group).obs, _latest(group).first
        if recorder.full:
            self.sink.insert(index, recorder.seal(obs, first, group.carry, self._pending[index].output.extras))
        if not recorder.open:
            buffer = self.sink.begin(index)
            if buffer is None:
                return None
            self._refresh_weights(index)
            recorder.begin(buffer, group.carry, self._pending[index].policy_version)
        output = self._pending.pop(index).output
        recorder.action(obs, first, group.carry, output.action, output.extras)
        group.advance(output)
        return output.action

    def _refresh_weights(self, index: int) -> None:
        """Load the newest weights and their progress, which epsilon depends on.

        With a synchronous learner, infer again if they have changed.
        """
        self.policy.progress = self.sink.refresh()
        if self._synchronous and self._pending[index].policy_version != self.policy.progress.updates:
            self._set_pending([index], self.policy.infer([self._groups[index]]))

    def restart_all(self, incarnations: Mapping[int, int]) -> None:
        """Start every group with its incarnation in `incarnations`, e.g. when a run is resumed."""
        for index, spec in self._specs.items():
            self.start_incarnation(index, replace(spec, incarnation=incarnations[index]))

    def get_state(self) -> dict[str, Any]:
        assert not self._pending, "a policy is saved between steps, when no group waits for a credit"
        return {
            "progress": asdict(self.policy.progress),
            "groups": {str(i): group.get_state() for i, group in self._groups.items()},
            "recorders": {str(i): recorder.get_state() for i, recorder in self._recorders.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        progress = Progress(**state["progress"])
        to_count(progress.env_steps), to_count(progress.updates)
        require(0.0 <= progress.fraction <= 1.0, "a run beyond its end")
        self.policy.progress = progress
        for index in self._groups:
            self._groups[index].set_state(state["groups"][str(index)])
            self._recorders[index].set_state(state["recorders"][str(index)])
