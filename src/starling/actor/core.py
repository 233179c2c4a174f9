"""The actor core: the network with the recurrent states and noise of its envs, and the recorder.

The same class sits in an actor or in an inference server; the env loop only sends observations and gets actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
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


OTHER = 0x5EED
"""Makes the noise of intrinsic rewards differ from that of actions."""


class RowGroup:
    """The envs of one env loop: their current observations, and the carry that goes with these."""

    def __init__(self, rows: NDArray, carry: Tree, intrinsic_state: Tree, seed: int, start: int, arm: int) -> None:
        self.rows = rows
        self.row_ids = torch.from_numpy(rows)
        self.arm = torch.full((len(rows),), arm)  # int64: the policy that each env plays without exploration
        self.noise, self.other_noise = Noise(seed, rows), Noise(seed ^ OTHER, rows)
        self.carry = carry  # numpy [B, ...]
        self.intrinsic_state = intrinsic_state  # tensors [B, ...]
        self.action: NDArray | None = None  # [B, ...] the last one
        self.step = start  # number of actions so far
        self.seen: EnvStep | None = None  # the current observations, with the results of the last actions

    def record_output(self, output: ActOutput) -> None:
        """Update the carry with an action; its rewards follow with the next observation."""
        self.step += 1
        self.action = output.action
        if "state" in self.carry:
            self.carry["state"] = output.state
        if "action" in self.carry:
            self.carry["action"] = output.action

    def reward(self, rewards: dict[str, NDArray]) -> None:
        """Complete the carry with the rewards [B] of the last action, per stream."""
        if "rewards" in self.carry:
            self.carry["rewards"] = {name: rewards[name] for name in self.carry["rewards"]}

    def get_state(self) -> dict[str, Any]:
        arrays = dict(tree.items((self.carry, self.seen)))
        return {
            "step": self.step,
            "arrays": {name: np.array(array) for name, array in arrays.items()},
            "intrinsic_state": {name: tensor.cpu().numpy().copy() for name, tensor in tree.items(self.intrinsic_state)},
            "action": None if self.action is None else np.array(self.action),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        assert self.seen is not None, "a group is restored after its env loop has started"
        self.step = to_count(state["step"])
        saved = state["arrays"]  # of earlier versions: without what steps did not have then
        restored = [(leaf, saved.get(name, leaf)) for name, leaf in tree.items((self.carry, self.seen))]
        for leaf, array in restored:
            same = array.shape == leaf.shape and array.dtype.kind == leaf.dtype.kind
            require(same, f"{array.dtype} {array.shape} of envs that have {leaf.dtype} {leaf.shape}")
        arrays = iter(array for _, array in restored)
        self.carry, self.seen = tree.map(lambda _: next(arrays), (self.carry, self.seen))
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
        mixed_precision: bool = False,  # bfloat16 where autocast finds it safe
    ) -> None:
        self.algorithm, self.model = algorithm, model
        self._mixed_precision = mixed_precision
        self.explore, self.num_envs = explore, num_envs
        self.progress = Progress()
        self.arm = 0  # the policy that is played without exploration, of an algorithm that has several
        self._device = next(iter(model.parameters())).device

    def group(self, rows: NDArray, seed: int, start: int = 0) -> RowGroup:
        """A group whose envs begin an episode; `start` is the first counter of their noise."""
        carry = tree.map(np.array, tree.to_numpy(self.model.initial_carry(len(rows))))
        intrinsic_state = tree.map(lambda tensor: tensor.to(self._device), self.algorithm.intrinsic_state(len(rows)))
        return RowGroup(rows, carry, intrinsic_state, seed, start, self.arm)

    def reward(self, group: RowGroup, clip: float | None) -> dict[str, NDArray]:
        """Rewards [B] of the last actions per stream; only the environment's is clipped. Call it once per step."""
        assert group.seen is not None
        rewards = learning_rewards(group.seen, clip)
        if group.intrinsic_state:
            rewards |= self._intrinsic(group, group.seen)
        group.reward(rewards)
        return rewards

    def _intrinsic(self, group: RowGroup, step: EnvStep) -> dict[str, NDArray]:
        ended = (step.terminated | step.truncated) & ~step.cut_short
        seen = IntrinsicInput(
            tree.to_torch(step.obs, self._device),
            torch.from_numpy(step.first).to(self._device),
            torch.from_numpy(ended).to(self._device),
            tree.to_torch(group.action, self._device),
            torch.from_numpy(step.reward).to(self._device),
            group.row_ids.to(self._device),
            self.explore,
            group.arm.to(self._device),
            lambda n: torch.from_numpy(group.other_noise.uniform(group.step, n)).to(self._device),
        )
        with torch.inference_mode():
            earned: Tree = self.algorithm.intrinsic_rewards(self.model, seen, group.intrinsic_state)
        group.carry |= tree.map(np.array, tree.to_numpy(group.intrinsic_state.get("carry", {})))
        return tree.to_numpy(earned)

    def infer(self, groups: Sequence[RowGroup]) -> list[ActOutput]:
        """Actions for all groups in one forward pass; changes no state."""
        single = groups[0] if len(groups) == 1 else None
        seen = [group.seen for group in groups if group.seen is not None]
        inputs = ActInput(
            obs=self._gather([s.obs for s in seen]),
            first=self._gather([s.first for s in seen]),
            carry=self._gather([group.carry for group in groups]),
            env_index=single.row_ids if single else torch.cat([group.row_ids for group in groups]),
            num_envs=self.num_envs,
            progress=self.progress,
            explore=self.explore,
            noise=self._noise(groups),
        )
        precision = torch.autocast(self._device.type, dtype=torch.bfloat16) if self._mixed_precision else nullcontext()
        with torch.inference_mode(), precision:
            acted = self.algorithm.act(self.model, inputs)
        output = tree.to_numpy(tree.map(_as_float32, acted) if self._mixed_precision else acted)
        if single:
            return [output]
        ends = np.cumsum([len(group.rows) for group in groups]).tolist()
        starts = [0, *ends[:-1]]
        return [tree.map(lambda leaf, a=a, b=b: leaf[a:b], output) for a, b in zip(starts, ends, strict=True)]

    def _gather(self, parts: list[Tree]) -> Tree:
        return tree.to_torch(tree.concat(parts, axis=0), self._device)

    def _noise(self, groups: Sequence[RowGroup]) -> Callable[[int], torch.Tensor]:
        def draw(n: int) -> torch.Tensor:
            drawn = [group.noise.uniform(group.step, n) for group in groups]
            return torch.from_numpy(drawn[0] if len(drawn) == 1 else np.concatenate(drawn)).to(self._device)

        return draw


def _as_float32(leaf: torch.Tensor) -> torch.Tensor:
    """Return bfloat16 as float32, since numpy has no bfloat16; other tensors as they are."""
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf


@dataclass(frozen=True)
class GroupSpec:
    """The envs of one env loop, and their incarnation."""

    rows: NDArray  # [B] int64: indices of the envs in the run
    incarnation: int = 0  # number of restarts of the env loop

    MAX_INCARNATIONS: ClassVar[int] = 2**16

    def actor_id(self, index: int) -> int:
        """An id per incarnation, so that a table never takes a new fragment for an old one."""
        return index * self.MAX_INCARNATIONS + self.incarnation

    @property
    def start(self) -> int:
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
        self._groups: dict[int, RowGroup] = {}
        self._recorders: dict[int, Recorder] = {}
        self._waiting: dict[int, _Inferred] = {}  # inferred, but without a credit for the next fragment
        for index, spec in groups.items():
            self.start_incarnation(index, spec)

    @property
    def incarnations(self) -> dict[int, int]:
        """The incarnation of every group."""
        return {index: spec.incarnation for index, spec in self._specs.items()}

    @property
    def recording(self) -> int:
        """Env rows with a fragment under way."""
        return sum(len(self._specs[index].rows) for index, recorder in self._recorders.items() if recorder.open)

    def start_incarnation(self, index: int, spec: GroupSpec) -> None:
        """Start a group, or restart it after its env loop was lost: all but its current observations is forgotten."""
        before = self._groups.get(index)
        self._specs[index] = spec
        self._groups[index] = self.policy.group(spec.rows, self._seed, spec.start)
        self._groups[index].seen = before.seen if before else None
        self._recorders[index] = Recorder(self._shape, spec.rows, actor=spec.actor_id(index))
        self._waiting.pop(index, None)

    def abandon(self, index: int) -> None:
        """Forget the open fragment of a group; it acts again only after `start_incarnation`."""
        self._recorders[index].abandon()
        self._waiting.pop(index, None)

    def observe(self, index: int, step: EnvStep) -> None:
        """Set the results of the last actions of a group; they are recorded when it acts next."""
        self._groups[index].seen = step

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        """Actions for these groups; None for a group that waits for a credit."""
        fresh = [i for i in indices if i not in self._waiting]
        if fresh:
            self._reward(fresh)
            self._infer(fresh)
        return [self._act_one(i) for i in indices]

    def _infer(self, indices: Sequence[int]) -> None:
        outputs = self.policy.infer([self._groups[i] for i in indices])
        updates = self.policy.progress.updates
        self._waiting.update({i: _Inferred(output, updates) for i, output in zip(indices, outputs, strict=True)})

    def _reward(self, indices: Sequence[int]) -> None:
        """Record the results of the last actions, with the rewards of every stream."""
        for index in indices:
            group, recorder = self._groups[index], self._recorders[index]
            assert group.seen is not None
            rewards = self.policy.reward(group, self._reward_clip)
            if recorder.open:
                recorder.result(group.seen, rewards)

    def _act_one(self, index: int) -> Tree | None:
        group, recorder = self._groups[index], self._recorders[index]
        assert group.seen is not None
        obs, first = group.seen.obs, group.seen.first
        if recorder.full:
            self.sink.insert(index, recorder.seal(obs, first, group.carry, self._waiting[index].output.extras))
        if not recorder.open:
            buffer = self.sink.begin(index)
            if buffer is None:
                return None
            self._renew(index)
            recorder.begin(buffer, group.carry, self._waiting[index].policy_version)
        output = self._waiting.pop(index).output
        recorder.action(obs, first, group.carry, output.action, output.extras)
        group.record_output(output)
        return output.action

    def _renew(self, index: int) -> None:
        """Read the newest weights; with a synchronous learner, infer again if they have changed."""
        self.policy.progress = self.sink.refresh()
        if self._synchronous and self._waiting[index].policy_version != self.policy.progress.updates:
            self._infer([index])

    def start_incarnations(self, incarnations: Mapping[int, int]) -> None:
        """Set the incarnation of every group."""
        for index, spec in self._specs.items():
            self.start_incarnation(index, replace(spec, incarnation=incarnations[index]))

    def get_state(self) -> dict[str, Any]:
        assert not self._waiting, "a policy is saved between steps, when no group waits for a credit"
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
