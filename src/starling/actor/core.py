"""The policy, where inference happens: the network, a recurrent state and noise a row, and the recorder.

The same class sits inside an actor or in an inference server; the env loop only sends observations and gets actions.
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
    """Where a policy gets leave and weights, and where its fragments go."""

    def begin(self, group: int) -> FragmentBuffer | None:
        """A credit for this group to begin a fragment, and where to write it; None: not now."""
        ...

    def refresh(self) -> Progress:
        """Load the newest weights into the model; returns the training progress at which they were published."""
        ...

    def insert(self, group: int, fragment: Fragment) -> None:
        """Take over a full fragment; its buffer goes back to whoever lent it."""
        ...


OTHER = 0x5EED
"""What makes the noise of intrinsic rewards another than that of actions."""


class RowGroup:
    """Rows that step together (one env loop's): what they see now and the carry that goes with it."""

    def __init__(self, rows: NDArray, carry: Tree, intrinsic_state: Tree, seed: int, start: int, arm: int) -> None:
        self.rows = rows
        self.row_ids = torch.from_numpy(rows)
        self.arm = torch.full((len(rows),), arm)  # int64: the policy that each row plays without exploration
        self.noise, self.other_noise = Noise(seed, rows), Noise(seed ^ OTHER, rows)
        self.carry = carry  # numpy [B, ...]
        self.intrinsic_state = intrinsic_state  # tensors [B, ...]
        self.action: NDArray | None = None  # [B, ...] the last one
        self.step = start  # how often these rows have acted
        self.seen: EnvStep | None = None  # what these rows see now, and what came of their last action

    def record_output(self, output: ActOutput) -> None:
        """Move on: the carry after this action, but for its rewards, which are known with the next observation."""
        self.step += 1
        self.action = output.action
        if "state" in self.carry:
            self.carry["state"] = output.state
        if "action" in self.carry:
            self.carry["action"] = output.action

    def reward(self, rewards: dict[str, NDArray]) -> None:
        """Complete the carry with what the last action earned, a stream each."""
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
        assert self.seen is not None, "rows are restored after their env loop has started"
        self.step = to_count(state["step"])
        saved = state["arrays"]  # of earlier versions: without what steps did not have then
        restored = [(leaf, saved.get(name, leaf)) for name, leaf in tree.items((self.carry, self.seen))]
        for leaf, array in restored:
            same = array.shape == leaf.shape and array.dtype.kind == leaf.dtype.kind
            require(same, f"{array.dtype} {array.shape} of env rows that have {leaf.dtype} {leaf.shape}")
        arrays = iter(array for _, array in restored)
        self.carry, self.seen = tree.map(lambda _: next(arrays), (self.carry, self.seen))
        for name, tensor in tree.items(self.intrinsic_state):
            tensor.copy_(torch.from_numpy(state["intrinsic_state"][name]))
        self.action = state.get("action")  # states of earlier versions have none


class Policy:
    """A network that acts for groups of rows."""

    def __init__(self, algorithm: Algorithm, model: Any, *, num_envs: int, explore: bool, mixed: bool = False) -> None:
        self.algorithm, self.model = algorithm, model
        self._mixed = mixed  # mixed precision: bfloat16 where autocast finds it safe
        self.explore, self.num_envs = explore, num_envs
        self.progress = Progress()
        self.arm = 0  # the policy that is played without exploration, of an algorithm that has several
        self._device = next(iter(model.parameters())).device

    def group(self, rows: NDArray, seed: int, start: int = 0) -> RowGroup:
        """Rows at the beginning of an episode; `start` is where their noise goes on."""
        carry = tree.map(np.array, tree.to_numpy(self.model.initial_carry(len(rows))))
        intrinsic_state = tree.map(lambda tensor: tensor.to(self._device), self.algorithm.intrinsic_state(len(rows)))
        return RowGroup(rows, carry, intrinsic_state, seed, start, self.arm)

    def reward(self, group: RowGroup, clip: float | None) -> dict[str, NDArray]:
        """What a group's last actions earned, a stream each; only the environment's is clipped. Asked once a step."""
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
        """Actions for all groups in one forward pass; changes nothing, so it may be asked twice."""
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
        precision = torch.autocast(self._device.type, dtype=torch.bfloat16) if self._mixed else nullcontext()
        with torch.inference_mode(), precision:
            acted = self.algorithm.act(self.model, inputs)
        output = tree.to_numpy(tree.map(_as_float32, acted) if self._mixed else acted)
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
    """One env loop's rows: who they are, and which life of theirs this is."""

    rows: NDArray  # [B] int64: global env rows
    incarnation: int = 0  # how often these rows have been lost and begun anew

    MAX_INCARNATIONS: ClassVar[int] = 2**16

    def actor_id(self, index: int) -> int:
        """An id per incarnation, so that a table never takes a new fragment for an old one."""
        return index * self.MAX_INCARNATIONS + self.incarnation

    @property
    def start(self) -> int:
        """Where the noise of this life begins: no life repeats another's."""
        return self.incarnation << 32


def next_incarnation(incarnations: Mapping[Any, int]) -> int:
    """A incarnation that none of the rows of an earlier run has had, whoever held them."""
    return 1 + max(incarnations.values(), default=-1)


@dataclass(frozen=True)
class _Inferred:
    """An output of the network and the version of its weights."""

    output: ActOutput
    policy_version: int


class PolicyCore:
    """A policy that also records: fragments go upstream, and each is begun only with leave from there."""

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
        self._waiting: dict[int, _Inferred] = {}  # acted on, but without leave to begin the next fragment
        for index, spec in groups.items():
            self.start_incarnation(index, spec)

    @property
    def incarnations(self) -> dict[int, int]:
        """Which life of its rows every group is in."""
        return {index: spec.incarnation for index, spec in self._specs.items()}

    @property
    def recording(self) -> int:
        """Env rows with a fragment under way."""
        return sum(len(self._specs[index].rows) for index, recorder in self._recorders.items() if recorder.open)

    def start_incarnation(self, index: int, spec: GroupSpec) -> None:
        """Rows begin, or begin anew after they were lost: what was under way is forgotten, but for what they see."""
        before = self._groups.get(index)
        self._specs[index] = spec
        self._groups[index] = self.policy.group(spec.rows, self._seed, spec.start)
        self._groups[index].seen = before.seen if before else None
        self._recorders[index] = Recorder(self._shape, spec.rows, actor=spec.actor_id(index))
        self._waiting.pop(index, None)

    def abandon(self, index: int) -> None:
        """Forget a group's fragment under way; it acts again only after it has begun anew."""
        self._recorders[index].abandon()
        self._waiting.pop(index, None)

    def observe(self, index: int, step: EnvStep) -> None:
        """Take in what a group's last actions led to; it is recorded when the group acts on it."""
        self._groups[index].seen = step

    def act(self, indices: Sequence[int]) -> list[Tree | None]:
        """Actions for these groups; None for a group that may not begin its next fragment yet."""
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
        """Record what the last actions led to, with the rewards of every stream."""
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
        """Read the weights; a synchronous learner wants even the first action of a fragment to follow them."""
        self.policy.progress = self.sink.refresh()
        if self._synchronous and self._waiting[index].policy_version != self.policy.progress.updates:
            self._infer([index])

    def start_incarnations(self, incarnations: Mapping[int, int]) -> None:
        """Let every group be in the life that is given for it."""
        for index, spec in self._specs.items():
            self.start_incarnation(index, replace(spec, incarnation=incarnations[index]))

    def get_state(self) -> dict[str, Any]:
        assert not self._waiting, "a policy is saved between steps, when no group waits for leave"
        return {
            "progress": asdict(self.policy.progress),
            "groups": {str(i): group.get_state() for i, group in self._groups.items()},
            "recorders": {str(i): recorder.get_state() for i, recorder in self._recorders.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        progress = Progress(**state["progress"])
        to_count(progress.env_steps), to_count(progress.updates)
        require(0.0 <= progress.fraction <= 1.0, "a run that is more than over")
        self.policy.progress = progress
        for index in self._groups:
            self._groups[index].set_state(state["groups"][str(index)])
            self._recorders[index].set_state(state["recorders"][str(index)])
