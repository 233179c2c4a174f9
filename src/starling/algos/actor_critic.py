"""What policy-gradient algorithms share: a policy head beside a value head a stream, and fragments in a queue."""

from __future__ import annotations

from typing import Any, TypeVar

from gymnasium import spaces

from starling import tree
from starling.algos.base import ActInput
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.ops.distributions import Distribution
from starling.store.spec import TableSpec
from starling.types import EnvSpec, StreamSpec, Tree

D = TypeVar("D", bound=Distribution)

POLICY = "policy"
"""The name of the policy head; value heads have the names of their streams."""

FINITE = (spaces.Discrete, spaces.MultiDiscrete)


def build_actor_critic(
    name: str,
    env: EnvSpec,
    net: NetConfig,
    streams: tuple[StreamSpec, ...],
    *,
    policy: HeadSpec | None = None,
    normalise: bool = False,
) -> Network:
    """The network of the algorithm called `name`; without a `policy` head, for choices out of finitely many actions."""
    if policy is None and not isinstance(env.action, FINITE):
        raise UserError(f"{name} needs a Discrete or MultiDiscrete action space; {env.id} has {env.action}")
    heads = {POLICY: policy or HeadSpec("policy"), **{stream.name: HeadSpec("value") for stream in streams}}
    return build_network(env, net, heads, tuple(stream.name for stream in streams), normalise)


def choose(model: Network, inputs: ActInput) -> tuple[Any, Tree, Tree]:
    """The policy of B rows, an action of it for each (the likeliest where nothing is to be explored), and the state."""
    outputs, state = model.step(inputs.obs, inputs.first, inputs.carry, only=(POLICY,))
    policy = outputs[POLICY]
    action = policy.sample(inputs.noise(policy.noise_size)) if inputs.explore else policy.mode()
    return policy, action, state


def first_steps(policy: D, length: int) -> D:
    """A policy of T + 1 observations at the T where an action was taken, [T, B]; the last only bootstraps."""
    return tree.map(lambda leaf: leaf[:length], policy)


def fragment_queue(name: str, length: int, batch: int, rows: int, max_lag: int) -> TableSpec:
    """Fragments of `length` steps, each learnt from once, in the order they came; `rows` envs step in all."""
    return TableSpec(
        name=name,
        storage="slots",
        length=length,
        fragment=length,
        batch=batch,
        capacity=batch * (1 + max_lag) + rows,  # what may be outstanding, and all rows for a batch that lacks one
        sampler="fifo",
        min_size=batch,
        max_lag=max_lag,
    )
