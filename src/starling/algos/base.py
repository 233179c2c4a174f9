"""The contract of an algorithm: the methods it implements, and the data it gets.

An algorithm states which experience it wants (`tables`) and how it is optimized (`learning`), and implements `act` and
`loss`. It never sees an environment, a queue, a file, or a clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import nn

from starling.config.nets import NamedNets
from starling.config.parts import NetConfig, OptimizerConfig
from starling.config.quantities import Quantity
from starling.nets.network import Network
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, NDArray, Progress, StreamSpec, Tensor, Trajectory, Tree


@dataclass(frozen=True)
class ActInput:
    """Input of `Algorithm.act` for B envs."""

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool: obs begins an episode
    carry: Tree  # [B, ...] as the model's `initial_carry` made it
    env_index: Tensor  # [B] int64: which of all envs these are; epsilons and bandits belong to envs
    num_envs: int  # of the whole run
    progress: Progress
    explore: bool  # False when evaluating
    noise: Callable[[int], Tensor]  # noise(n) -> [B, n] uniform in (0, 1), a pure function of (seed, env, step)


@dataclass(frozen=True)
class ActOutput:
    """Actions, data to record beside them, and the recurrent state after them."""

    action: Tree  # [B, ...]
    extras: dict[str, Tree]  # [B, ...] kept in the trajectory
    state: Tree = None  # [B, ...] the carry's "state" for the next step, if the network is recurrent


@dataclass(frozen=True)
class IntrinsicInput:
    """Input of `Algorithm.intrinsic_rewards`: the last step of B envs, which ended in `obs`."""

    obs: Tree  # [B, ...]
    first: Tensor  # [B] bool: obs begins an episode
    ended: Tensor  # [B] bool: obs is the last of an episode that the env itself ended or truncated
    begins: Tensor  # [b] int64: where `first` is True; the host knows how many there are
    ends: Tensor  # [e] int64: where `ended` is True
    action: Tree  # [B, ...] the last action; arbitrary if obs begins an episode
    reward: Tensor  # [B] reward of the environment, not clipped
    env_index: Tensor  # [B] int64
    explore: bool  # False when evaluating
    arm: Tensor  # [B] int64: the policy to play without exploration, if the algorithm has several
    noise: Callable[[int], Tensor]  # like `ActInput.noise`, and independent of it


@dataclass(frozen=True)
class TargetSpec:
    """Updates of the target network.

    Every `every` updates (default 1) the target becomes `tau * model + (1 - tau) * target` (default `tau` 1, a copy).
    With `Quantity(n, "env steps")` it does so in the first update beyond every multiple of n env steps. Buffers are
    then copied, never averaged. A parameter that belongs to no optimizer stays as it is in the target too.
    """

    every: int | Quantity | None = None
    tau: float | None = None


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer and its parameters; no parameter belongs to two optimizers."""

    config: OptimizerConfig
    parameters: Callable[[nn.Module], Iterable[nn.Parameter]] = lambda model: model.parameters()
    summed: bool = False  # its loss is a sum over the batch, not a mean
    every: int = 1  # delayed updates: it steps in every n-th update; its schedule advances in all


def network_optimizers(
    net: NetConfig,
    name: str,
    default: OptimizerConfig,
    *,
    summed: bool = False,
    network: Callable[[Any], Network] = lambda model: model,
) -> dict[str, OptimizerSpec]:
    """The optimizers of a network that `build_network` has made of `net`: one called `name`, or those that `nets` sets.

    Give all of them the same loss, `dict.fromkeys(optimizers, loss)`: each minimizes it in its own parameters.

    Args:
        net: The settings that the algorithm was constructed with.
        name: Name of the optimizer if there is only one.
        default: Its settings, and those of each network in `nets` without an optimizer of its own.
        summed: The loss is a sum over the batch, not a mean.
        network: Finds the network in the algorithm's model.
    """

    def parameters_of(optimizer: str) -> Callable[[nn.Module], Iterable[nn.Parameter]]:
        if not isinstance(net, NamedNets):
            return lambda model: network(model).parameters()
        return lambda model: network(model).parameters_of(optimizer)

    configs = net.optimizers(name, default)
    return {name: OptimizerSpec(config, parameters_of(name), summed) for name, config in configs.items()}


@dataclass(frozen=True)
class LearnSpec:
    """Settings of the update from one batch. Schedules advance once per update, whatever its epochs."""

    optimizers: dict[str, OptimizerSpec]
    target: TargetSpec | None = None
    epochs: int = 1
    minibatches: int = 1
    split: Literal["env", "step"] = "env"  # minibatches of whole sequences (recurrent networks) or of single steps
    importance_beta: Callable[[Progress], float] | None = None  # beta of prioritized replay (1511.05952)
    sequential: bool = False  # each of `Algorithm.parts` is computed after the optimizer steps of the parts before it

    def __post_init__(self) -> None:
        if any(spec.every < 1 for spec in self.optimizers.values()):
            raise ValueError("OptimizerSpec.every must be at least 1")
        if all(spec.every > 1 for spec in self.optimizers.values()):
            raise ValueError("at least one optimizer must step in every update: leave its OptimizerSpec.every at 1")


@dataclass(frozen=True)
class Loss:
    """Result of `Algorithm.loss`.

    Attributes:
        losses: One scalar per optimizer; several may have the same. Each is differentiated with respect to the
            parameters of its own optimizer, all at the same parameters: no optimizer steps before every gradient is
            computed, unless `LearnSpec.sequential` is set. An optimizer that is left out is not stepped in this
            minibatch; its schedule advances all the same.
        metrics: Called without gradient for the last minibatch of an update only; the values are logged as `loss/NAME`.
        priorities: New priorities [B] of the sampled items, for a prioritized table.
    """

    losses: dict[str, Tensor]
    metrics: Callable[[], dict[str, Tensor]] = dict
    priorities: Tensor | None = None  # [B]


@dataclass(frozen=True)
class LossPart:
    """A part of the loss: a function that computes it, and the optimizers that it has losses for (None: all)."""

    compute: Callable[[], Loss]
    optimizers: tuple[str, ...] | None = None


def merge_losses(losses: Sequence[Loss]) -> Loss:
    """Merge the parts of a loss; at most one of them has priorities."""
    if len(losses) == 1:
        return losses[0]
    return Loss(
        losses={name: value for loss in losses for name, value in loss.losses.items()},
        metrics=lambda: {name: value for loss in losses for name, value in loss.metrics().items()},
        priorities=next((loss.priorities for loss in losses if loss.priorities is not None), None),
    )


class Trials(Protocol):
    """An evaluator's choice among several policies, by their returns in trial episodes.

    An evaluation starts with `due` trials. It then scores `best` in other episodes.
    """

    @property
    def due(self) -> int:
        """Number of trials of the next evaluation."""
        ...

    @property
    def played(self) -> int:
        """Number of trials so far."""
        ...

    @property
    def best(self) -> int:
        """The policy to score, and to play without exploration."""
        ...

    def choose(self, under_way: Collection[int], noise: Tensor) -> int:
        """Choose the policy of a trial, given the policies of running trials and noise [2] in (0, 1)."""
        ...

    def learn(self, arm: int, total: float) -> None:
        """Add the undiscounted return of a whole episode of policy `arm`."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def get_state(self) -> dict[str, Any]:
        """Plain JSON values, which are saved with the run and sent between processes."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; {} starts anew."""
        ...


class Algorithm(ABC):
    """Base class of all algorithms. The constructor takes the settings of the algorithm and those of its network.

    In `loss` and `prepare`, `target_net` is a copy of the model that is updated as `learning().target` states, or None.
    """

    @abstractmethod
    def __init__(self, config: Any, net: NetConfig) -> None: ...

    @abstractmethod
    def streams(self) -> tuple[StreamSpec, ...]:
        """The reward streams to learn from; the environment's is called "extrinsic"."""

    @abstractmethod
    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> nn.Module:
        """Build the model, with one value or Q head per stream; it must have `initial_carry(batch_size) -> dict`.

        It is called before `act` and `loss` on the same instance, which may keep the streams, or what else it needs to
        know of the env.
        """

    @abstractmethod
    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        """The experience to sample batches from; the run has `num_envs` envs."""

    @abstractmethod
    def learning(self) -> LearnSpec:
        """Optimizers, target network, epochs, and minibatches."""

    @abstractmethod
    def act(self, model: Any, inputs: ActInput) -> ActOutput:
        """Choose actions for B envs; called without gradient."""

    @abstractmethod
    def loss(self, model: Any, target_net: Any, batch: Batch) -> Loss:
        """Compute the losses of a (mini)batch: one scalar per optimizer, metrics, and optional new priorities."""

    def parts(self, model: Any, target_net: Any, batch: Batch) -> Sequence[LossPart]:
        """The loss in parts, each with its own optimizers; by default a single part, which computes `loss`.

        By default all parts are computed at the same parameters. With `LearnSpec.sequential` they are computed in
        order, each after the optimizer steps of those before it ("critic first, then actor"). A part is skipped in
        updates in which none of its optimizers steps (`OptimizerSpec.every`); so draw random numbers here, not in a
        part.
        """
        return (LossPart(lambda: self.loss(model, target_net, batch)),)

    def prepare(self, model: Any, target_net: Any, batch: Batch) -> Batch:
        """Called once per batch, without gradient, before all epochs: e.g. compute advantages into `batch.prepared`.

        Statistics in the model's buffers must be sums and counts: several learners add their changes.
        """
        return batch

    def exploration_metrics(self, progress: Progress, num_envs: int) -> dict[str, float]:
        """Metrics of exploration over all training envs, e.g. their mean epsilon; logged as `explore/NAME`."""
        return {}

    def recorded_rewards(self) -> tuple[str, ...]:
        """Names of the rewards that `intrinsic_rewards` returns; they are recorded beside the environment's."""
        return ()

    def intrinsic_state(self, num_envs: int) -> dict[str, Any]:
        """Initial state of `after_step` and `intrinsic_rewards` for B envs: nested dicts of tensors [B, ...].

        Both change it in place.
        Entries under "carry" are also part of the carry; the model's `initial_carry` must have them.
        """
        return {}

    def after_step(self, seen: IntrinsicInput, state: dict[str, Any]) -> None:  # noqa: B027 (optional)
        """Update `state` after a step of B envs and before `intrinsic_rewards`, e.g. choose policies of new episodes.

        Called only if there is an `intrinsic_state`.
        """

    def intrinsic_rewards(self, model: Any, seen: IntrinsicInput, state: dict[str, Any]) -> dict[str, Tensor]:
        """Intrinsic rewards [B] per stream for the last step of B envs; called without gradient."""
        return {}

    def trials(self) -> Trials | None:
        """Return new `Trials` if evaluation chooses among several policies (`IntrinsicInput.arm`), else None."""
        return None

    def priority(self, sequence: Trajectory[NDArray]) -> NDArray | None:
        """Initial priorities [B] of new items, from recorded data without observations; None: the largest so far."""
        return None

    def score(self, model: Any, table: int, candidates: Trajectory[Tensor], recent: Trajectory[Tensor]) -> Tensor:
        """Distances [B] of candidates, by which a table selects; called without gradient.

        Args:
            table: Index of the table in `tables`.
            candidates: Items of that table, [T, B].
            recent: The newest fragments, which this batch takes from the queue.
        """
        raise NotImplementedError(f"{type(self).__name__} has a ranked table, but no method score")
