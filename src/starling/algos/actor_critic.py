"""Parts shared by policy-gradient algorithms: a policy head, one value head per stream, V-trace."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput
from starling.algos.settings import VTraceConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.ops.distributions import Distribution
from starling.ops.streams import stream_terms
from starling.ops.vtrace import VTrace, vtrace
from starling.types import EnvSpec, StreamSpec, Tensor, Trajectory, Tree

POLICY, VALUE = "policy", "value"
"""Networks; "policy" is also the name of the policy head, while value heads have the names of their streams."""

FINITE = (spaces.Discrete, spaces.MultiDiscrete)
BEHAVIOR = "behavior"
"""Recorded parameters of the behavior policy: the full distribution, not only the probability of the action."""


def build_actor_critic(
    name: str,
    env: EnvSpec,
    net: NetConfig,
    streams: tuple[StreamSpec, ...],
    *,
    policy: HeadSpec | None = None,
    normalize: bool = False,
) -> Network:
    """Build the network of the algorithm `name`; without a `policy` head, the action space must be finite."""
    if policy is None and not isinstance(env.action, FINITE):
        raise UserError(f"{name} needs a Discrete or MultiDiscrete action space; {env.id} has {env.action}")
    heads = {POLICY: policy or HeadSpec("policy")}
    heads |= {s.name: HeadSpec("value", network=net.network_of(VALUE, s.name)) for s in streams}
    return build_network(env, net, heads, normalize=normalize)


def choose(model: Network, inputs: ActInput) -> tuple[Any, Tree, Tree]:
    """Return the policy, actions [B, ...] sampled from it (its mode if not exploring), and the next recurrent state."""
    outputs, state = model.step(inputs.obs, inputs.first, inputs.carry, only=(POLICY,))
    policy = outputs[POLICY]
    return policy, choose_from(policy, inputs), state


def choose_from(policy: Any, inputs: ActInput) -> Tensor:
    """Sample actions [B, ...] from the policy, or take its mode if not exploring."""
    action: Tensor = policy.sample(inputs.noise(policy.noise_size)) if inputs.explore else policy.mode()
    return action


def behavior_policy(policy: Distribution, trajectory: Trajectory[Tensor]) -> Distribution:
    """The recorded behavior policy [T, B], a distribution of the same class as `policy`."""
    return first_steps(type(policy).from_params(trajectory.extras[BEHAVIOR]), trajectory.length)


def first_steps(policy: Distribution, length: int) -> Distribution:
    """The policy [T, B] at the first T of T + 1 observations; the last one only bootstraps."""
    return tree.map(lambda leaf: leaf[:length], policy)


def vtrace_by_stream(
    heads: dict[str, Tensor],  # [T+1, B] values of every stream, by name
    log_rho: Tensor,  # [T, B]
    trajectory: Trajectory[Tensor],
    streams: tuple[StreamSpec, ...],
    config: VTraceConfig,
    keep_t: Tensor | None = None,  # [T, B] bool
) -> dict[str, VTrace]:
    """V-trace value targets and advantages [T, B] per stream."""

    def trace(stream: StreamSpec) -> VTrace:
        terms, v = stream_terms(trajectory, stream), heads[stream.name]
        return vtrace(
            log_rho,
            terms.r_t,
            terms.discount_t,
            v[:-1],
            v[1:],
            terms.valid_t,
            lambda_t=terms.lambda_t,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            keep_t=keep_t,
            acted_t=terms.acted_t,
        )

    return {stream.name: trace(stream) for stream in streams}
