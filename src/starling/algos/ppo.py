"""Proximal policy optimisation (1707.06347) with generalised advantage estimation (1506.02438), recurrent or not."""

from __future__ import annotations

from dataclasses import replace

import torch
from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput, ActOutput, Algorithm, LearnSpec, Loss, OptimizerSpec
from starling.config.algo.ppo import PPOConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.ops.policy import (
    approx_kl,
    clipped_fraction,
    clipped_value_loss,
    masked_mean,
    normalise,
    ppo_surrogate,
    value_loss,
)
from starling.ops.returns import gae
from starling.ops.streams import stream_terms
from starling.store.spec import TableSpec
from starling.types import Batch, EnvSpec, StreamSpec, Tensor

POLICY = "policy"


class PPO(Algorithm):
    """A policy head and a value head a stream."""

    def __init__(self, config: PPOConfig, net: NetConfig) -> None:
        self.config, self.net = config, net
        self._streams = self.streams()
        self._sequential = net.core.kind != "none" or bool(net.inputs)

    def streams(self) -> tuple[StreamSpec, ...]:
        return (StreamSpec(discount=self.config.discount, lambda_=self.config.gae_lambda),)

    def build(self, env: EnvSpec, streams: tuple[StreamSpec, ...]) -> Network:
        if not isinstance(env.action, spaces.Discrete | spaces.MultiDiscrete):
            raise UserError(f"ppo needs a Discrete or MultiDiscrete action space; {env.id} has {env.action}")
        self._streams = streams
        heads = {POLICY: HeadSpec("policy"), **{stream.name: HeadSpec("value") for stream in streams}}
        return build_network(env, self.net, heads, tuple(stream.name for stream in streams))

    def tables(self, rows: int) -> tuple[TableSpec, ...]:
        batch, rollout = self.config.rows or rows, self.config.rollout
        parts = batch if self._sequential else batch * rollout
        if self.config.minibatches > parts:
            what = "env rows (a recurrent batch is split by row)" if self._sequential else "steps"
            raise UserError(f"algo.minibatches={self.config.minibatches} is more than the batch's {parts} {what}")
        return (
            TableSpec(
                name="rollouts",
                storage="slots",
                length=rollout,
                fragment=rollout,
                batch=batch,
                capacity=2 * max(batch, rows),
                sampler="fifo",
                min_size=batch,
                max_lag=0,
            ),
        )

    def learning(self) -> LearnSpec:
        return LearnSpec(
            optimizers={"ppo": OptimizerSpec(self.config.optimizer)},
            epochs=self.config.epochs,
            minibatches=self.config.minibatches,
            split="env" if self._sequential else "step",
        )

    def act(self, model: Network, inputs: ActInput) -> ActOutput:
        outputs, state = model.step(inputs.obs, inputs.first, inputs.carry, only=(POLICY,))
        policy = outputs[POLICY]
        action = policy.sample(inputs.noise(policy.noise_size)) if inputs.explore else policy.mode()
        return ActOutput(action, extras={"log_prob": policy.log_prob(action)}, state=state)

    def prepare(self, model: Network, target: None, batch: Batch) -> Batch:
        """Values of the present network in one pass, then advantages and returns a stream, [T, B] each."""
        steps = batch.trajectory
        outputs, _, _ = model.unroll(steps.obs, steps.first, steps.action, steps.rewards, steps.carry)
        advantage, values, returns = torch.zeros_like(outputs[self._streams[0].name][:-1]), {}, {}
        for stream in self._streams:
            v = outputs[stream.name]  # [T+1, B]
            terms = stream_terms(steps, stream)
            a = gae(terms.r_t, terms.discount_t, v[:-1], v[1:], terms.lambda_t, terms.valid_t)
            advantage = advantage + stream.weight * a
            values[stream.name], returns[stream.name] = v[:-1], a + v[:-1]
        return replace(batch, prepared={"advantage": advantage, "values": values, "returns": returns})

    def loss(self, model: Network, target: None, batch: Batch) -> Loss:
        steps, prepared, valid = batch.trajectory, batch.prepared, batch.trajectory.valid
        length = steps.length
        obs = tree.map(lambda leaf: leaf[:length], steps.obs)
        outputs, _, _ = model.unroll(obs, steps.first[:length], steps.action, steps.rewards, steps.carry)
        log_prob, behaviour = outputs[POLICY].log_prob(steps.action), steps.extras["log_prob"][:length]
        advantage = prepared["advantage"]
        if self.config.normalize_advantages:
            advantage = normalise(advantage, valid)
        clip = self.config.clip.at(batch.progress.env_steps, batch.progress.fraction)
        policy_loss = masked_mean(ppo_surrogate(log_prob, behaviour, advantage, clip), valid)
        v_loss = torch.stack([self._value_loss(outputs, prepared, valid, s.name) for s in self._streams]).sum()
        entropy = masked_mean(outputs[POLICY].entropy(), valid)
        loss = policy_loss + self.config.value_coef * v_loss - self.config.entropy_coef * entropy
        return Loss(
            losses={"ppo": loss},
            metrics={
                "policy": policy_loss,
                "value": v_loss,
                "entropy": entropy,
                "kl": approx_kl(log_prob, behaviour, valid),
                "clipped": clipped_fraction(log_prob, behaviour, valid, clip),
            },
        )

    def _value_loss(
        self, outputs: dict[str, Tensor], prepared: dict[str, dict[str, Tensor]], valid: Tensor, stream: str
    ) -> Tensor:
        v, goal = outputs[stream], prepared["returns"][stream]
        if self.config.value_clip is None:
            return masked_mean(value_loss(v, goal), valid)
        return masked_mean(clipped_value_loss(v, prepared["values"][stream], goal, self.config.value_clip), valid)
