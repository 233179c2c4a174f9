from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, Network, build_network
from starling.types import EnvSpec

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTOR_CRITIC = {"policy": HeadSpec("policy"), "value": HeadSpec("value")}
T, B = 8, 3


class CountingCore(nn.Module):
    """Outputs the number of observations since the last reset; unrolls with its own loop."""

    def __init__(self, _inputs, _size):
        super().__init__()
        self.size = 1
        self.register_buffer("zero", torch.zeros(1))

    def initial_state(self, batch_size):
        return {"count": self.zero.new_zeros(batch_size, 1)}

    def step(self, _x, first, state):
        count = torch.where(first.unsqueeze(-1), 0.0, state["count"]) + 1.0
        return count, {"count": count}

    def forward(self, x, first, state):
        counts = []
        for x_t, first_t in zip(x, first, strict=True):
            count, state = self.step(x_t, first_t, state)
            counts.append(count)
        return torch.stack(counts), state


class EmptyTorso(nn.Module):
    """A torso without outputs, so that features are only the previous action and rewards."""

    def __init__(self, _space):
        super().__init__()
        self.size = 0

    def forward(self, x):
        return x.new_zeros(len(x), 0)


def sevens(_space):
    torso = nn.Linear(3, 5)
    nn.init.constant_(torso.weight, 7.0)
    torso.size = 5
    return torso


def env(action=None, observation=VECTOR):
    return EnvSpec("toy", observation, action or spaces.Discrete(4))


def build(action=None, heads=ACTOR_CRITIC, observation=VECTOR, streams=("extrinsic",), seed=0, **net):
    torch.manual_seed(seed)
    return build_network(env(action, observation), NetConfig(**net), heads, streams)


def episodes(length, rows=B, seed=0):
    """`first` [length, rows]: every row begins an episode at step 0 and at random, sometimes at two steps in a row."""
    first = torch.rand(length, rows, generator=torch.Generator().manual_seed(seed)) < 0.25
    first[0] = True
    return first


def data(length, seed=0, streams=("extrinsic",), actions=4):
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(length, B, 3, generator=generator)
    action = torch.randint(0, actions, (length, B), generator=generator)
    rewards = {name: torch.randn(length, B, generator=generator) for name in streams}
    return obs, episodes(length, seed=seed), action, rewards


def act_through(net, obs, first, action, rewards):
    """Act one step at a time; returns the outputs and the carry before every observation."""
    carry, outputs, carries = net.initial_carry(B), [], []
    for t in range(len(obs)):
        carries.append(carry)
        outputs_now, state = net.step(obs[t], first[t], carry)
        outputs.append(outputs_now)
        after = {"state": state, "action": action[t], "rewards": {name: r[t] for name, r in rewards.items()}}
        carry = {name: after[name] for name in carry}
    return tree.stack(outputs), carries


def close(a, b, atol=1e-6):
    tree.map(lambda x, y: torch.testing.assert_close(x, y, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_counting_core_has_the_right_state_in_every_fragment(shared, length):
    net = build(heads={"value": HeadSpec("value")}, shared=shared, core=CoreConfig(kind=f"{__name__}:CountingCore"))
    nn.init.ones_(net.heads["value"].value.weight)
    nn.init.zeros_(net.heads["value"].value.bias)
    obs, first, action, rewards = data(24)
    expected = torch.zeros(24, B)  # observations seen in the episode, counted by a plain loop
    for t in range(24):
        expected[t] = torch.where(first[t], 1.0, expected[t - 1] + 1.0)
    assert expected.max() > 3
    outputs, carries = act_through(net, obs, first, action, rewards)
    assert torch.equal(outputs["value"], expected)
    for start in range(24 - length):  # fragments of T + 1 observations, each from the carry before its first one
        span = slice(start, start + length + 1)
        unrolled, _, state = net.unroll(obs[span], first[span], action[span], rewards, carries[start])
        assert torch.equal(unrolled["value"], expected[span])
        last = state if shared else state["value"]
        assert torch.equal(last["count"][:, 0], expected[start + length])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("inputs", [[], ["action"], ["reward"], ["action", "reward"]])
@pytest.mark.parametrize("kind", ["none", "lstm", "gru"])
def test_unroll_in_learning_equals_steps_in_acting(kind, inputs, shared):
    net = build(core=CoreConfig(kind=kind, size=6), inputs=inputs, shared=shared, streams=("extrinsic", "rnd"))
    obs, first, action, rewards = data(20, streams=("extrinsic", "rnd"))
    acted, carries = act_through(net, obs, first, action, rewards)
    for start in (0, 5, 11):
        span, steps = slice(start, start + T + 1), slice(start, start + T)
        r = {name: value[steps] for name, value in rewards.items()}
        learned, features, _ = net.unroll(obs[span], first[span], action[steps], r, carries[start])
        close(learned, tree.map(lambda x, span=span: x[span], acted))
        close(learned, net.decode(features))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_two_halves_joined_by_the_carry_equal_one_unroll(kind):
    net = build(core=CoreConfig(kind=kind, size=6), inputs=["action", "reward"])
    obs, first, action, rewards = data(10)
    carry = net.initial_carry(B)
    whole, _, last = net.unroll(obs, first, action, rewards, carry)
    left, _, state = net.unroll(obs[:4], first[:4], action[:4], rewards, carry)
    middle = {"state": state, "action": action[3], "rewards": {"extrinsic": rewards["extrinsic"][3]}}
    later = {"extrinsic": rewards["extrinsic"][4:]}
    right, _, last_of_halves = net.unroll(obs[4:], first[4:], action[4:], later, middle)
    close(tree.concat((left, right), axis=0), whole)
    close(last_of_halves, last)


def test_previous_actions_and_rewards_are_those_of_the_step_before():
    empty = TorsoConfig(kind=f"{__name__}:EmptyTorso")
    net = build(torso=empty, inputs=["action", "reward"], streams=("extrinsic", "rnd"))
    obs, first, action, rewards = data(T + 1, streams=("extrinsic", "rnd"))
    first[0, 1] = False  # so that row 1 continues an episode, whose past is in the carry
    carry = {"action": torch.tensor([1, 3, 2]), "rewards": {"extrinsic": torch.ones(B), "rnd": 5 * torch.ones(B)}}
    _, features, _ = net.unroll(obs, first, action[:T], {k: v[:T] for k, v in rewards.items()}, carry)
    for t in range(T + 1):
        for b in range(B):
            before = carry["action"][b] if t == 0 else action[t - 1, b]
            r = [carry["rewards"][s][b] if t == 0 else rewards[s][t - 1, b] for s in ("extrinsic", "rnd")]
            expected = [float(before == a) for a in range(4)] + [float(x) for x in r]
            assert features[t, b].tolist() == ([0.0] * 6 if first[t, b] else expected)
    assert features[0, 1].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("action", "taken", "encoded"),
    [
        (spaces.Discrete(3, start=5), torch.tensor([0, 2]), [[1.0, 0, 0], [0, 0, 1.0]]),
        (spaces.MultiDiscrete([2, 2]), torch.tensor([[0, 1], [1, 1]]), [[1.0, 0, 0, 1], [0, 1.0, 0, 1]]),
        (spaces.MultiBinary(2), torch.tensor([[0, 1], [1, 1]]), [[0.0, 1], [1.0, 1]]),
        (spaces.Box(-9.0, 9.0, (2,)), torch.tensor([[0.5, -1.0], [2.0, 0.0]]), [[0.5, -1.0], [2.0, 0.0]]),
    ],
)
def test_previous_actions_of_every_kind_are_encoded(action, taken, encoded):
    net = build(action, torso=TorsoConfig(kind=f"{__name__}:EmptyTorso"), inputs=["action"])
    assert net.initial_carry(2)["action"].shape == taken.shape
    assert net.initial_carry(2)["action"].dtype == taken.dtype
    features, _ = net.encode(torch.randn(2, 3), torch.zeros(2, dtype=torch.bool), {"action": taken})
    assert features.tolist() == encoded


def test_missing_previous_actions_are_rejected():
    net = build(inputs=["action"])
    obs, first, action, rewards = data(5)
    with pytest.raises(ValueError, match="5 observations need 4 previous actions"):
        net.unroll(obs, first, action[:3], rewards, net.initial_carry(B))


def test_carry_has_only_what_the_network_needs():
    assert build().initial_carry(2) == {}
    assert build(shared=False).initial_carry(2) == {}
    shapes = tree.map(
        lambda x: (tuple(x.shape), x.dtype, bool(x.any())),
        build(core=CoreConfig(kind="lstm", size=6), inputs=["reward", "action"], streams=("a", "b")).initial_carry(2),
    )
    zeros = ((2, 6), torch.float32, False)
    reward_spec = ((2,), torch.float32, False)
    assert shapes == {
        "state": {"h": zeros, "c": zeros},
        "action": ((2,), torch.int64, False),
        "rewards": {"a": reward_spec, "b": reward_spec},
    }
    separate = build(core=CoreConfig(kind="gru", size=6), shared=False).initial_carry(2)
    assert {name: set(state) for name, state in separate["state"].items()} == {"policy": {"h"}, "value": {"h"}}


@pytest.mark.parametrize("shared", [True, False])
def test_network_without_a_core_returns_no_state(shared):
    net = build(shared=shared)
    assert net.step(torch.randn(B, 3), torch.ones(B, dtype=torch.bool), {})[1] is None


@pytest.mark.parametrize("shared", [True, False])
def test_heads_share_one_trunk_or_have_one_each(shared):
    net = build(shared=shared)
    loss = net.step(torch.randn(B, 3), torch.ones(B, dtype=torch.bool), {})[0]["value"].sum()
    loss.backward()
    reached = {name.split(".")[1] for name, p in net.named_parameters() if p.grad is not None}
    assert reached == ({"shared", "value"} if shared else {"value"})
    assert len(net.trunks) == (1 if shared else 2)


def test_dict_observations_give_the_same_in_step_and_unroll():
    space = spaces.Dict(image=spaces.Box(0, 1, (10, 10, 2), np.uint8), where=spaces.Discrete(5))
    net = build(observation=space)
    obs = {"image": torch.randint(0, 2, (T, B, 10, 10, 2), dtype=torch.uint8), "where": torch.randint(0, 5, (T, B))}
    outputs, _, _ = net.unroll(obs, episodes(T), None, {}, {})
    acted, _ = net.step(tree.map(lambda x: x[2], obs), episodes(T)[2], {})
    close(tree.map(lambda x: x[2], outputs), acted, atol=1e-5)


def test_critic_over_state_and_action_has_a_gradient_in_the_action():
    space = spaces.Dict(obs=VECTOR, action=spaces.Box(-1.0, 1.0, (2,)))
    net = build(observation=space, heads={"q1": HeadSpec("value"), "q2": HeadSpec("value")}, shared=False)
    action = torch.zeros(T, B, 2, requires_grad=True)
    outputs, _, _ = net.unroll({"obs": torch.randn(T, B, 3), "action": action}, episodes(T), None, {}, {})
    assert outputs["q1"].shape == (T, B)
    outputs["q2"].sum().backward()
    assert action.grad.any()


def test_orthogonal_initialization_has_the_gain_of_each_part():
    net = build(init="orthogonal", torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind="lstm", size=4))
    first = net.trunks["shared"].torso.dense.linears[0]
    torch.testing.assert_close(first.weight.T @ first.weight, 2.0 * torch.eye(3))
    recurrent = net.trunks["shared"].core.lstm.weight_hh_l0
    torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(4))
    logits, value = net.heads["policy"].logits, net.heads["value"].value
    torch.testing.assert_close(logits.weight @ logits.weight.T, 1e-4 * torch.eye(4), rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(value.weight @ value.weight.T, torch.eye(1))
    gates = net.trunks["shared"].core.lstm.bias_ih_l0  # input, forget, cell, output
    torch.testing.assert_close(gates, torch.tensor([0.0] * 4 + [0, 4 / 3, 8 / 3, 4] + [0] * 8))
    assert not any(p.any() for name, p in net.named_parameters() if "bias" in name and p is not gates)
    assert any(p.any() for name, p in build().named_parameters() if "bias" in name)  # torch's default biases are not 0


@pytest.mark.parametrize("net", [{}, {"core": CoreConfig(kind="lstm", size=4), "inputs": ["action"], "shared": False}])
def test_deep_copy_is_equal_and_independent(net):
    online = build(**net)
    target = copy.deepcopy(online)
    obs, first, action, rewards = data(T)
    carry = online.initial_carry(B)
    expected = online.unroll(obs, first, action, rewards, carry)[0]
    close(target.unroll(obs, first, action, rewards, carry)[0], expected, atol=0)
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1.0)
    close(target.unroll(obs, first, action, rewards, carry)[0], expected, atol=0)
    fresh = build(**net, seed=1)
    fresh.load_state_dict(target.state_dict())
    close(fresh.unroll(obs, first, action, rewards, carry)[0], expected, atol=0)


def test_all_tensors_move_to_another_device():
    net = build(spaces.MultiDiscrete([2, 3]), core=CoreConfig(kind="lstm", size=4), inputs=["action", "reward"]).to(
        "meta"
    )
    carry = net.initial_carry(B)
    assert {leaf.device.type for leaf in tree.leaves(carry)} == {"meta"}
    first = torch.ones(B, dtype=torch.bool, device="meta")
    outputs, state = net.step(torch.zeros(B, 3, device="meta"), first, carry)
    assert {leaf.device.type for leaf in tree.leaves((outputs, state))} == {"meta"}


def test_user_torso_keeps_its_own_initialization():
    net = build(torso=TorsoConfig(kind=f"{__name__}:sevens"), init="orthogonal")
    assert (net.trunks["shared"].torso.weight == 7.0).all()


def test_invalid_networks_raise_clear_errors():
    with pytest.raises(UserError, match=r"previous action cannot enter"):
        build(spaces.Dict(a=spaces.Discrete(2)), heads={"value": HeadSpec("value")}, inputs=["action"])
    with pytest.raises(ValueError, match="needs heads"):
        build(heads={})
    assert isinstance(build(), Network)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_step_with_only_some_heads_gives_the_same_outputs_and_all_states(shared, core):
    net = NetConfig(core=CoreConfig(kind=core, size=4), shared=shared)
    env = EnvSpec("toy", spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    network = build_network(env, net, {"policy": HeadSpec("policy"), "extrinsic": HeadSpec("value")})
    obs, first, carry = torch.rand(5, 3), torch.zeros(5, dtype=torch.bool), network.initial_carry(5)
    all_heads, state = network.step(obs, first, carry)
    one_head, kept = network.step(obs, first, carry, only=("policy",))
    assert list(one_head) == ["policy"]
    assert torch.equal(one_head["policy"].logits, all_heads["policy"].logits)
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(state), tree.leaves(kept), strict=True)].count(False) == 0
