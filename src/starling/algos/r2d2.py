"""R2D2 (Kapturowski 2019): Ape-X with memory, learned from replayed sequences with stored recurrent states and burn-in.

A window of the ring is `burn_in` steps and then `unroll` steps that are trained. Where it begins an episode its true
state is known to be zero: no burn-in is needed, so all of its steps are trained and no episode is too short to learn.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from starling import tree
from starling.algos.apex import ApeX
from starling.algos.base import ActInput, ActOutput, Loss
from starling.config.algo.r2d2 import R2D2Config
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import Network
from starling.nets.burn_in import unroll_burnt_in
from starling.ops.drift import delta_q
from starling.ops.explore import epsilon_greedy, epsilon_greedy_policy, epsilon_greedy_probability
from starling.ops.policy import masked_mean
from starling.ops.priority import sequence_priority
from starling.ops.retrace import retrace
from starling.ops.streams import StreamTerms, stream_terms, total, weighted_total
from starling.ops.transforms import IDENTITY, RESCALED
from starling.ops.value import huber, n_step_target, take, td_error
from starling.replay.spec import TableSpec
from starling.types import Batch, NDArray, StreamSpec, Tensor, Trajectory, Tree

Q, MU, FEATURES = "q", "mu", "features"
"""What acting records: Q values [A] a stream, how likely the action was, and what the core gave to the heads."""

Values = dict[str, Tensor]
"""Q values, a stream each."""


class R2D2(ApeX):
    """Exploration and optimisation are Ape-X's; tables, acting and loss are those of sequences."""

    config: R2D2Config

    def __init__(self, config: R2D2Config, net: NetConfig) -> None:
        if net.core.kind == "none":
            raise UserError(f"{config.name} learns what to remember: set net.core.kind=lstm or gru")
        self.config, self.net = config, net
        self._streams, self._ladder = self.streams(), config.ladder
        self._transform = RESCALED if config.rescale else IDENTITY

    def tables(self, num_envs: int) -> tuple[TableSpec, ...]:
        """Overlapping windows, each with something to learn from."""
        (replay,) = super().tables(num_envs)
        burn_in, unroll, period = self.config.burn_in, self.config.unroll, self.config.period
        return (replace(replay, length=burn_in + unroll, period=period, prefix=burn_in),)

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        features, state = model.encode(inputs.obs, inputs.first, inputs.carry)
        q = model.decode(features)
        combined_q, epsilon = self.combine_q(q, inputs.carry), self.epsilon(inputs)
        action = epsilon_greedy(combined_q, epsilon, inputs.noise(2))
        extras: dict[str, Tree] = {Q: q}
        if self.config.retrace is not None:
            extras[MU] = epsilon_greedy_probability(combined_q, epsilon, action)
        if self.config.delta_q:
            extras[FEATURES] = features
        return ActOutput(action, extras, state)

    def loss(self, model: Network, target_net: Network, batch: Batch) -> Loss:
        """Squared (Huber) errors, summed over a sequence's trained steps, a mean over sequences by their weight."""
        steps = self._begun(model, batch.trajectory)
        q = unroll_burnt_in(model, steps, self.config.burn_in)
        with torch.no_grad():
            q_target, _, _ = target_net.unroll_trajectory(steps)
        trained_t, ended_t = self._trained(steps), steps.terminated | steps.truncated
        q, q_target = (self._at_ends(model, values, ended_t) for values in (q, q_target))
        errors = self._td_errors(steps, q, q_target, trained_t)
        losses = self.losses({name: huber(error, self.config.huber) for name, error in errors.items()}, batch.weight)
        with torch.no_grad():
            combined_q = self.combine_q(q, steps.carry)
            drift = self._drift(model, steps, combined_q, trained_t) if self.config.delta_q else {}
        return Loss(
            losses=losses,
            metrics=lambda: {**losses, "value": masked_mean(take(combined_q[:-1], steps.action), trained_t), **drift},
            priorities=sequence_priority(self.td_priority(errors), trained_t, self.config.eta),
        )

    def combine_q(self, q: Values, carry: dict[str, Tree]) -> Tensor:
        """What the policy is greedy in, [..., B, A], from Q values a stream; the carry is that of the rows [B]."""
        return weighted_total(q, self._streams)

    def terms(self, steps: Trajectory[Tensor], stream: StreamSpec) -> StreamTerms:
        """Rewards and discounts of one stream."""
        return stream_terms(steps, stream, whole=False)

    def losses(self, errors_t: Values, weight: Tensor) -> Values:
        """A scalar an optimizer: penalties [T, B] a stream, summed over a sequence, a mean by weight [B]."""
        return {"q": (weight * total([*errors_t.values()]).sum(0)).mean()}

    def priority(self, window: Trajectory[NDArray]) -> NDArray:
        """The learner's priority [B] as the actor would have said it, from the Q values it acted with."""
        steps = tree.to_torch(window)
        trained_t = self._trained(steps)
        errors = self._td_errors(steps, steps.extras[Q], steps.extras[Q], trained_t)
        return sequence_priority(self.td_priority(errors), trained_t, self.config.eta).numpy()

    def _trained(self, steps: Trajectory[Tensor]) -> Tensor:
        """Which steps have a target, bool [T, B]: those after the burn-in, or all where a window begins an episode."""
        after = torch.arange(steps.length, device=steps.valid.device) >= self.config.burn_in  # [T]
        return steps.valid & (after.unsqueeze(1) | steps.first[0])

    def _td_errors(self, steps: Trajectory[Tensor], q: Values, q_target: Values, trained_t: Tensor) -> Values:
        """Target less Q of the action taken [T, B] a stream, 0 where nothing is trained; q, q_target: [T+1, B, A]."""
        selector = self.combine_q(q if self.config.double else q_target, steps.carry)
        errors = {}
        for stream in self._streams:
            target = self._td_target(steps, stream, selector, q_target[stream.name])
            errors[stream.name] = td_error(take(q[stream.name][:-1], steps.action), target, trained_t)
        return errors

    def _td_target(self, steps: Trajectory[Tensor], stream: StreamSpec, selector: Tensor, q_target: Tensor) -> Tensor:
        """Targets of the Q taken [T, B], inside h, for the policy that prefers what `selector` [T+1, B, A] does."""
        terms, transform = self.terms(steps, stream), self._transform
        if self.config.retrace is None:
            v = take(q_target, selector.argmax(-1))  # [T+1, B]
            n = self.config.n_step
            return n_step_target(terms.r_t, terms.discount_t, v[:-1], v[1:], n, terms.valid_t, transform)
        return retrace(
            terms.r_t,
            terms.discount_t,
            q_target,
            steps.action,
            epsilon_greedy_policy(selector, self.config.eval_epsilon),
            steps.extras[MU][:-1],
            terms.valid_t,
            lambda_t=self.config.retrace,
            transform=transform,
        )

    def _begun(self, model: Network, steps: Trajectory[Tensor]) -> Trajectory[Tensor]:
        """The steps, from a zero state where that is wanted."""
        if self.config.state == "stored":
            return steps
        return replace(steps, carry={**steps.carry, "state": model.initial_carry(steps.rows)["state"]})

    def _drift(self, model: Network, steps: Trajectory[Tensor], q: Tensor, trained_t: Tensor) -> Values:
        """delta-Q at the first step after the burn-in and at the last, of sequences that reach so far; q: [T+1, B, A].

        Both states are valued with the present weights, so this is what replay costs and not what was learned since.
        """
        count = steps.valid.sum(0)  # [B]
        reaches = (count > self.config.burn_in).nonzero().flatten()  # [b]
        if len(reaches) == 0:
            return {}
        last = count[reaches] - 1
        where = torch.stack([torch.full_like(last, self.config.burn_in), last]), reaches
        recorded = model.decode(tree.map(lambda leaf: leaf[where], steps.extras[FEATURES]))
        combined_q = self.combine_q(recorded, tree.map(lambda leaf: leaf[reaches], steps.carry))  # [2, b, A]
        first, end = delta_q(q[where], combined_q, q[:-1, reaches], trained_t[:, reaches]).mean(1)
        return {"delta_q_first": first, "delta_q_last": end}
