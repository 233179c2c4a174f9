"""Networks configured one by one: separate and shared trunks, heads, preprocessing, and who trains which parameters."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.config.nets import NamedNets, NetworkConfig
from starling.config.parts import NetConfig
from starling.errors import UserError
from starling.nets.build import HeadSpec, build_network
from starling.types import EnvSpec

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
PAIR = spaces.Dict({"seen": VECTOR, "hidden": spaces.Box(-1.0, 1.0, (2,), np.float32)})
HEADS = {"policy": HeadSpec("policy"), "extrinsic": HeadSpec("value", network="value")}
T, B = 6, 3
OPTIMIZER = {"optimizer": {"args": {"lr": 0.1}}}


class Doubled(nn.Module):
    """Preprocessing of a user's own."""

    def __init__(self, space, times=2.0):
        super().__init__()
        self.space, self.times = space, times

    def forward(self, obs):
        return self.times * obs


class Zero(nn.Module):
    """A head of a user's own."""

    def __init__(self, inputs, space, spec, bias=0.0):
        super().__init__()
        assert spec.kind == "value"
        self.value = nn.Linear(inputs, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.constant_(self.value.bias, bias)

    def forward(self, x):
        return self.value(x).squeeze(-1)


def build(nets, observation=VECTOR, heads=HEADS, streams=("extrinsic",), **net):
    torch.manual_seed(0)
    named = NamedNets.of(NetConfig(**net), {name: NetworkConfig(**one) for name, one in nets.items()})
    return build_network(EnvSpec("toy", observation, spaces.Discrete(4)), named, heads, streams)


def data(seed=0):
    random = torch.Generator().manual_seed(seed)
    first = torch.rand(T, B, generator=random) < 0.3
    first[0] = True
    action = torch.randint(0, 4, (T, B), generator=random)
    return torch.randn(T, B, 3, generator=random), first, action, {"extrinsic": torch.randn(T, B, generator=random)}


def widths(trunk):
    return [linear.out_features for linear in trunk.torso.dense.linears]


def test_each_network_has_a_torso_of_its_own_size():
    net = build({"policy": {"torso": {"hidden": [16, 8]}}, "value": {"torso": {"hidden": [5]}}})
    assert {name: widths(trunk) for name, trunk in net.trunks.items()} == {"policy": [16, 8], "value": [5]}
    outputs, state = net.step(torch.zeros(B, 3), torch.ones(B, dtype=torch.bool), net.initial_carry(B))
    assert outputs["extrinsic"].shape == (B,)
    assert state is None
    assert net.initial_carry(B) == {}


def test_shared_trunk_is_one_and_heads_are_several():
    net = build({"policy": {}, "value": {"share": "policy", "head": {"hidden": [5], "activation": "tanh"}}})
    assert list(net.trunks) == ["policy"]
    assert net.heads["extrinsic"].value[0].linears[0].out_features == 5
    assert isinstance(net.heads["policy"].logits, nn.Linear)


def act_through(net, obs, first, action, rewards):
    carry, outputs, carries = net.initial_carry(B), [], []
    for t in range(T):
        carries.append(carry)
        now, state = net.step(obs[t], first[t], carry)
        outputs.append(now)
        after = {"state": state, "action": action[t], "rewards": {name: r[t] for name, r in rewards.items()}}
        carry = {name: after[name] for name in carry}
    return tree.stack(outputs), carries


RECURRENT = {"core": {"kind": "gru", "size": 7}, "inputs": ["action", "reward"]}


def test_recurrent_policy_beside_a_critic_without_memory():
    """Acting step by step equals an unroll from any carry; only the policy sees previous actions and rewards."""
    net = build({"policy": RECURRENT, "value": {}})
    obs, first, action, rewards = data()
    outputs, carries = act_through(net, obs, first, action, rewards)
    assert carries[0]["state"]["policy"]["h"].shape == (B, 7)
    assert carries[0]["state"]["value"] is None
    for start in (0, 2):
        unrolled, features, state = net.unroll(
            obs[start:], first[start:], action[start:], {"extrinsic": rewards["extrinsic"][start:]}, carries[start]
        )
        torch.testing.assert_close(unrolled["extrinsic"], outputs["extrinsic"][start:])
        torch.testing.assert_close(unrolled["policy"].logits, outputs["policy"].logits[start:])
        assert net.features_of("policy", features).shape == (T - start, B, 7)
    assert state["value"] is None
    other, _ = act_through(net, obs, first, action, {"extrinsic": 2 * rewards["extrinsic"]})
    assert torch.equal(other["extrinsic"], outputs["extrinsic"])
    assert not torch.equal(other["policy"].logits, outputs["policy"].logits)


def test_acting_skips_what_it_does_not_need_but_not_recurrent_states():
    net = build({"policy": {}, "value": RECURRENT})
    obs, first, _, _ = data()
    carry = net.initial_carry(B)
    features, state = net.encode(obs[0], first[0], carry, only=("policy",))
    assert sorted(features) == ["policy", "value"]  # the critic's state must follow
    assert state["value"]["h"].any()
    net = build({"policy": RECURRENT, "value": {}})
    features, state = net.encode(obs[0], first[0], net.initial_carry(B), only=("policy",))
    assert list(features) == ["policy"]
    assert sorted(state) == ["policy", "value"]


@pytest.mark.parametrize(
    ("nets", "trained"),
    [
        (
            {"policy": {}, "value": {}},
            {"policy": ["heads.policy", "trunks.policy"], "value": ["heads.extrinsic", "trunks.value"]},
        ),
        (
            {"policy": {}, "value": {"share": "policy"}},
            {"policy": ["heads.extrinsic", "heads.policy", "trunks.policy"]},
        ),
        (
            {"policy": {}, "value": {"share": "policy", **OPTIMIZER}},
            {"policy": ["heads.policy", "trunks.policy"], "value": ["heads.extrinsic"]},
        ),
        (
            {"policy": {"share": "value", **OPTIMIZER}, "value": {}},
            {"policy": ["heads.policy"], "value": ["heads.extrinsic", "trunks.value"]},
        ),
    ],
)
def test_every_parameter_belongs_to_the_optimizer_of_its_network(nets, trained):
    net = build(nets)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    found = {name: sorted(names.pop(id(p)) for p in net.parameters_of(name)) for name in trained}  # each only once
    assert not names
    assert {name: sorted({".".join(n.split(".")[:2]) for n in mine}) for name, mine in found.items()} == trained


def test_critic_may_see_more_than_the_policy():
    net = build({"policy": {"preprocessing": [{"name": "select", "args": {"keys": ["seen"]}}]}, "value": {}}, PAIR)
    first = torch.zeros(B, dtype=torch.bool)
    obs = {"seen": torch.randn(B, 3), "hidden": torch.randn(B, 2)}
    one, _ = net.step(obs, first, {})
    two, _ = net.step({**obs, "hidden": torch.randn(B, 2)}, first, {})
    assert torch.equal(one["policy"].logits, two["policy"].logits)
    assert not torch.equal(one["extrinsic"], two["extrinsic"])


def test_preprocessing_is_applied_in_order_before_the_torso():
    steps = [
        {"name": "scale", "args": {"shift": [1, 0, 0], "factor": 3}},
        {"name": f"{__name__}:Doubled", "args": {"times": 5.0}},
    ]
    plain, processed = (build({"policy": {}, "value": {}}, preprocessing=used) for used in ([], steps))
    obs, first = torch.randn(B, 3), torch.zeros(B, dtype=torch.bool)
    expected, _ = plain.step((obs - torch.tensor([1.0, 0.0, 0.0])) * 15, first, {})
    found, _ = processed.step(obs, first, {})
    torch.testing.assert_close(found["extrinsic"], expected["extrinsic"])


def test_head_of_the_users_own_keeps_its_initialization():
    head = {"kind": f"{__name__}:Zero", "args": {"bias": 2.0}}
    net = build({"policy": {}, "value": {"head": head}}, init="orthogonal")
    outputs, _ = net.step(torch.randn(B, 3), torch.zeros(B, dtype=torch.bool), {})
    assert outputs["extrinsic"].tolist() == [2.0] * B


def test_copy_of_the_network_has_parameters_of_its_own():
    net = build({"policy": {}, "value": {}})
    twin = copy.deepcopy(net)
    assert not {id(p) for p in net.parameters_of("value")} & {id(p) for p in twin.parameters_of("value")}
    assert len(twin.parameters_of("value")) == len(net.parameters_of("value")) > 0


@pytest.mark.parametrize(
    ("step", "space", "message"),
    [
        ({"name": "selct"}, VECTOR, "unknown preprocessing 'selct'; did you mean 'select'"),
        ({"name": "select", "args": {"keys": ["a"]}}, VECTOR, "preprocessing select needs a Dict observation, not Box"),
        ({"name": "select", "args": {"keys": ["sen"]}}, PAIR, "observations have no key 'sen'; did you mean 'seen'"),
        ({"name": "select"}, PAIR, r"preprocessing select cannot be made with \(space, \*\*args\): missing"),
        ({"name": "scale", "args": {"shift": [1, 2]}}, VECTOR, r"shift has 2 numbers, observations \(3,\)"),
        ({"name": "scale", "args": {"shift": "a"}}, VECTOR, "scale: shift must be a number or a list of numbers"),
        ({"name": "scale"}, PAIR, "preprocessing scale needs a Box of floats"),
        ({"name": "torch.nn:Identity"}, VECTOR, "needs an attribute `space`"),
        ({"name": "builtins:dict"}, VECTOR, "must be a subclass of torch.Module"),
    ],
)
def test_impossible_preprocessing_is_one_clear_line(step, space, message):
    with pytest.raises(UserError, match=message) as caught:
        build({"policy": {"preprocessing": [step]}, "value": {}}, space)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"args": {"bias": 1.0}}, "head.args are for a class of your own"),
        ({"kind": f"{__name__}:Zero", "args": {"no": 1}}, "cannot be made with .*: got an unexpected keyword"),
        ({"kind": "no.such:Head"}, "cannot import 'no.such:Head'"),
    ],
)
def test_impossible_head_is_one_clear_line(head, message):
    with pytest.raises(UserError, match=message):
        build({"policy": {}, "value": {"head": head}})
