"""The contract between an algorithm and the rest: what a person writes, and what it is given.

An algorithm is one file. It says which experience it wants (`tables`), how it is optimised (`learning`), how it acts
and what its loss is. It never sees an environment, a queue, a file or a clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import nn

from starling.config.parts import NetConfig, OptimizerConfig
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, NDArray, Progress, StreamSpec, Tensor, Trajectory, Tree


@dataclass(frozen=True)
class ActInput:
    """What a policy sees when it acts for B env rows."""

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool: obs begins an episode
    carry: Tree  # [B, ...] as the model's `initial_carry` made it
    env_index: Tensor  # [B] int64: which of all envs these are; epsilons and bandits belong to envs
    num_envs: int  # of the whole run
    progress: Progress
    explore: bool  # False when evaluating
    noise: Callable[[int], Tensor]  # noise(n) -> [B, n] uniform in (0, 1), a pure function of (seed, row, step)


@dataclass(frozen=True)
class ActOutput:
    """Actions, what to record beside them, and the recurrent state after them."""

    action: Tree  # [B, ...]
    extras: dict[str, Tree]  # [B, ...] kept in the trajectory
    state: Tree = None  # [B, ...] the carry's "state" for the next step; None where there is none


@dataclass(frozen=True)
class IntrinsicInput:
    """What B env rows have come to see, and what led there: an intrinsic reward is a judgement of this."""

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool: obs begins an episode
    ended: Tensor  # [B] bool: obs is the last of an episode that the env ended; False where it was cut off by others
    action: Tree  # [B, ...] the last action; anything where obs begins an episode
    reward: Tensor  # [B] the environment's own for it, never clipped
    env_index: Tensor  # [B] int64
    explore: bool  # False when evaluating
    arm: Tensor  # [B] int64: the policy to play when not exploring, of an algorithm that has several
    noise: Callable[[int], Tensor]  # as that of ActInput, of which it is independent


@dataclass(frozen=True)
class TargetSpec:
    """How the target network follows: copied `every` so many updates, or moved by `tau` after each."""

    every: int | None = None
    tau: float | None = None


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer and the parameters it alone moves."""

    config: OptimizerConfig
    parameters: Callable[[nn.Module], Iterable[nn.Parameter]] = lambda model: model.parameters()
    summed: bool = False  # its loss is a sum over a batch's rows, not a mean: so is the gradient of several learners


@dataclass(frozen=True)
class LearnSpec:
    """How batches become updates. A version is one batch with all its epochs; schedules count versions."""

    optimizers: dict[str, OptimizerSpec]
    target: TargetSpec | None = None
    epochs: int = 1
    minibatches: int = 1
    split: Literal["env", "step"] = "env"  # minibatches of whole rows (recurrent) or of single steps
    importance_exponent: Callable[[Progress], float] | None = None  # PER's beta
    concurrent_losses: int = 1  # parts of the loss (`Algorithm.parts`) that take long enough to be worth a core each


@dataclass(frozen=True)
class Loss:
    """A scalar for every optimizer, what to log, and new priorities where the sampler wants them.

    `metrics` is called without gradient, for the last minibatch of a version only: that is what is logged.
    """

    losses: dict[str, Tensor]
    metrics: Callable[[], dict[str, Tensor]] = dict
    priorities: Tensor | None = None  # [B]


def together(losses: Sequence[Loss]) -> Loss:
    """The parts of a loss as one; at most one of them has priorities."""
    if len(losses) == 1:
        return losses[0]
    return Loss(
        losses={name: value for loss in losses for name, value in loss.losses.items()},
        metrics=lambda: {name: value for loss in losses for name, value in loss.metrics().items()},
        priorities=next((loss.priorities for loss in losses if loss.priorities is not None), None),
    )


class Trials(Protocol):
    """Returns of several policies in an evaluator's own trial episodes, and the choice that follows from them.

    An evaluation begins with `due` trials. It then scores `best` in other episodes, which are no trials.
    """

    @property
    def due(self) -> int:
        """Trials of the next evaluation."""
        ...

    @property
    def played(self) -> int:
        """Trials so far."""
        ...

    @property
    def best(self) -> int:
        """The policy to score, and to play for whoever does not explore."""
        ...

    def choose(self, under_way: Collection[int], noise: Tensor) -> int:
        """Choose the policy of a trial, given those of the trials under way and noise [2] in (0, 1)."""
        ...

    def learn(self, arm: int, total: float) -> None:
        """Take in the undiscounted return of a whole episode that policy `arm` played."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def get_state(self) -> dict[str, Any]:
        """Values that JSON has: they are saved with a run and sent between processes."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; {}: from the beginning."""
        ...


class Algorithm(ABC):
    """The one file a person writes. The constructor takes the algorithm's settings and the network's.

    `target` is a copy of the model that follows it as `learning().target` says; None where there is none.
    """

    @abstractmethod
    def __init__(self, config: Any, net: NetConfig) -> None: ...

    @abstractmethod
    def streams(self) -> tuple[StreamSpec, ...]:
        """The reward streams; "extrinsic" is the environment's."""

    @abstractmethod
    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> nn.Module:
        """The model, a value or Q head a stream; it must offer `initial_carry(rows) -> dict`."""

    @abstractmethod
    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        """The experience it wants, where `rows` envs step in all."""

    @abstractmethod
    def learning(self) -> LearnSpec:
        """Optimizers, target, epochs."""

    @abstractmethod
    def act(self, model: Any, inputs: ActInput) -> ActOutput:
        """Actions for B rows, without gradient."""

    @abstractmethod
    def loss(self, model: Any, target_net: Any, batch: Batch) -> Loss:
        """What the optimizers make smaller."""

    def parts(self, model: Any, target_net: Any, batch: Batch) -> Sequence[Callable[[], Loss]]:
        """The loss in parts that take about as long as each other, to be computed at the same time on several cores.

        A part has optimizers of its own, whose parameters others only read. Random numbers are drawn here and not in a
        part, so that results do not depend on who is first.
        """
        return (lambda: self.loss(model, target_net, batch),)

    def prepare(self, model: Any, target_net: Any, batch: Batch) -> Batch:
        """Once a batch, without gradient: advantages, statistics.

        Statistics in the model's buffers must add up (counts, sums): several learners add their changes together.
        """
        return batch

    def exploration(self, progress: Progress, num_envs: int) -> dict[str, float]:
        """Metrics of how `num_envs` training envs explore now, e.g. their epsilon, as a function of the progress."""
        return {}

    def recorded_rewards(self) -> tuple[str, ...]:
        """Names of what `intrinsic` gives, to be recorded beside the environment's rewards."""
        return ()

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        """What `intrinsic` keeps of `rows` env rows: tensors [B, ...] in nested dicts, which it changes in place.

        What lies under "carry" becomes part of the rows' carry, as the model's `initial_carry` has it.
        """
        return {}

    def intrinsic_rewards(self, model: Any, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        """What B rows earn [B] besides the environment's reward for having come to see this; without gradient."""
        return {}

    def trials(self) -> Trials | None:
        """Return new `Trials` if evaluation chooses among several policies (`IntrinsicInput.arm`), else None."""
        return None

    def priority(self, window: Trajectory[NDArray]) -> NDArray | None:
        """First priorities [B] from what was recorded, without observations; None: the largest seen so far."""
        return None

    def score(self, model: Any, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]) -> Tensor:
        """How far off the candidates [B] of a table that ranks them are, without gradient; the smallest is the best.

        `recent` is what this batch takes from the queue: the newest there is.
        """
        raise NotImplementedError(f"{type(self).__name__} has a ranked table, but no score")
