"""Parts shared by Q-learners with a replay: Q heads, replay table, exploration, and non-episodic reward streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.algos.dqn.config import DQNConfig
from starling.algos.sac.config import SACConfig
from starling.algos.settings import PrioritizedConfig
from starling.algos.tables import replay_table
from starling.config.bandits import EpsilonBanditConfig
from starling.config.parts import Linear, NetConfig
from starling.errors import UserError
from starling.intrinsic.arms import Arms
from starling.nets.build import HeadSpec, Network
from starling.nets.normalizers import MovingMean
from starling.ops.devices import select_rows
from starling.ops.explore import epsilon_greedy_policy, epsilon_metrics, ladder
from starling.ops.retrace import retrace
from starling.ops.streams import StreamTerms, bootstrap_from_reset, weighted_total
from starling.ops.value import IDENTITY, Transform, batched_index
from starling.replay.spec import TableSpec
from starling.types import Batch, EnvSpec, Progress, StreamSpec, Tensor, Trajectory

Values = dict[str, Tensor]
"""One tensor per stream, such as Q values."""


Q, MU = "q", "mu"
"""Q: the network of all streams that have none of their own, and recorded Q values [A] per stream; MU: the recorded
probability of the action."""


def q_heads(env: EnvSpec, streams: tuple[StreamSpec, ...], config: DQNConfig, net: NetConfig) -> dict[str, HeadSpec]:
    """One Q head per stream; the action space must be Discrete."""
    if not isinstance(env.action, spaces.Discrete):
        raise UserError(f"{config.name} needs a Discrete action space; {env.id} has {env.action}")
    head = HeadSpec("dueling", hidden=tuple(config.dueling_hidden)) if config.dueling else HeadSpec("q")
    return {stream.name: replace(head, network=net.network_of(Q, stream.name)) for stream in streams}


def n_step_table(config: DQNConfig | SACConfig) -> TableSpec:
    """A replay of `n_step`-step sequences, sampled uniformly or by priority."""
    return replay_table(
        batch=config.batch,
        capacity=config.capacity,
        updates_per_step=config.updates_per_step,
        learning_starts=config.learning_starts,
        length=config.n_step,
        fragment=config.fragment,
        priority_exponent=None if config.prioritized is None else config.prioritized.alpha,
        codec=config.codec,
    )


def beta_schedule(prioritized: PrioritizedConfig | None) -> Callable[[Progress], float] | None:
    """Beta of prioritized replay as a function of progress, or None without priorities."""
    return None if prioritized is None else lambda p: prioritized.beta.at(p)


def td_priority(td_errors: Values, streams: tuple[StreamSpec, ...]) -> Tensor:
    """Priorities, of the shape of the TD errors: their absolute values, weighted over streams."""
    return weighted_total({name: error.detach().abs() for name, error in td_errors.items()}, streams)


class EpsilonBandit:
    """Exploration with the epsilon that a bandit of each env chooses for its episodes (2003.13350, section 3.2).

    The bandits' state is part of an env's intrinsic state; the chosen arm is in the carry.
    """

    def __init__(self, config: EpsilonBanditConfig, epsilon: Linear) -> None:
        self._ladder, self._epsilon = config.ladder, epsilon
        self.arms = Arms(config.arms, config)

    def epsilon(self, progress: Progress, arm: Tensor) -> Tensor:
        """Epsilons [B] of arms [B]: epsilon^(1 + ladder i / (N - 1))."""
        return ladder(arm, self.arms.count, self._epsilon.at(progress), self._ladder)

    def exploration_metrics(self, progress: Progress) -> dict[str, float]:
        """Metrics over all arms."""
        return epsilon_metrics(self.epsilon(progress, torch.arange(self.arms.count)))


def make_epsilon_bandit(config: DQNConfig) -> EpsilonBandit | None:
    return None if config.epsilon_bandit is None else EpsilonBandit(config.epsilon_bandit, config.epsilon)


def retrace_target(
    trajectory: Trajectory[Tensor],
    terms: StreamTerms,
    selector: Tensor,
    q_target: Tensor,
    lambda_: float,
    epsilon: float,
    transform: Transform = IDENTITY,
) -> Tensor:
    """Retrace's targets [T, B] of one stream for the policy that is epsilon-greedy in `selector` [T+1, B, A]."""
    return retrace(
        terms.r_t,
        terms.discount_t,
        q_target,
        trajectory.action,
        epsilon_greedy_policy(selector, epsilon),
        trajectory.extras[MU][: trajectory.length],
        terms.valid_t,
        lambda_t=lambda_,
        transform=transform,
    )


# A non-episodic stream continues after the end of an episode with the value of the next first observation. A sampled
# sequence does not contain that observation, so the "reset value", a mean over first observations, stands in for it.


def add_reset_values(network: Network, streams: tuple[StreamSpec, ...]) -> None:
    """Give the network a running mean of the value of first observations, for each non-episodic stream."""
    network.reset_values.update({stream.name: MovingMean() for stream in streams if not stream.episodic})


def update_reset_values(
    model: Network, target_net: Network, batch: Batch, streams: tuple[StreamSpec, ...], transform: Transform
) -> None:
    """Update the means with max_a Q_target(s_0, a) of the sequences in the batch that start an episode."""
    if not model.reset_values:
        return
    trajectory = batch.trajectory
    rows = (tree.map(lambda leaf: leaf[0], trajectory.obs), trajectory.first[0], trajectory.carry, batch.weight)
    (obs, first, carry, weight), counts = select_rows(rows, trajectory.first[0])  # [n, ...]
    if len(first) == 0:
        return
    q, _ = target_net.step(obs, first, carry)
    best = weighted_total(q, streams).argmax(-1)
    for name, mean in _moving_means(model.reset_values):
        mean.update(transform.inverse(batched_index(q[name], best)), weight, counts)


def substitute_reset_values(reset_values: nn.ModuleDict, q: Values, ended_t: Tensor, transform: Transform) -> Values:
    """Replace Q values of final observations by the reset value, in non-episodic streams; those of others stay.

    Targets that bootstrap from the returned Q values then continue beyond the end of the episode.

    Args:
        reset_values: `reset_values` of the online network; the target network's copy of them may be old.
        q: Q values [T+1, B, A] or [B, A] per stream, of either network.
        ended_t: bool [T, B] or [B]: steps after which an episode ends.
        transform: Transform of the Q values; reset values are not transformed.
    """
    values = {name: transform.apply(mean.value()) for name, mean in _moving_means(reset_values)}
    return q | {name: bootstrap_from_reset(q[name], ended_t, value) for name, value in values.items()}


def _moving_means(reset_values: nn.ModuleDict) -> Iterator[tuple[str, MovingMean]]:
    """Yield the name of each non-episodic stream and the mean value of first observations."""
    for name, mean in reset_values.items():
        assert isinstance(mean, MovingMean)
        yield name, mean
