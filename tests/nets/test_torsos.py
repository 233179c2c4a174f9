from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from starling import tree
from starling.config.parts import TorsoConfig
from starling.errors import UserError
from starling.nets.encoders import Flat, Image, OneHot, Residual, image_shape
from starling.nets.torsos import TORSOS, Torso, automatic, build_torso

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
PIXELS = spaces.Box(0, 255, (96, 96, 3), np.uint8)
MINATAR = spaces.Box(0, 1, (10, 10, 4), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)


class OwnTorso(nn.Module):
    def __init__(self, space, width=3):
        super().__init__()
        self.size = width
        self.inner = nn.Linear(space.shape[0], width)

    def forward(self, x):
        return self.inner(x)


class WithoutSize(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.space = space


def sample(space, n=3, seed=0):
    space.seed(seed)
    return tree.to_torch(tree.stack([tree.map(np.asarray, space.sample()) for _ in range(n)]))


COLOR_STACK = spaces.Box(0, 255, (4, 84, 84, 3), np.uint8)


@pytest.mark.parametrize(
    ("norm", "activation"), [("none", "relu"), ("layer", "tanh"), ("group", "elu"), ("none", "gelu"), ("group", "relu")]
)
@pytest.mark.parametrize(
    ("kind", "space", "size"),
    [
        ("mlp", VECTOR, 64),
        ("mlp", MINATAR, 64),
        ("nature", ATARI, 512),
        ("nature", PIXELS, 512),
        ("nature", COLOR_STACK, 512),
        ("nature", spaces.Box(0, 255, (36, 40), np.uint8), 512),
        ("impala", spaces.Box(0, 255, (4, 20, 21), np.uint8), 256),
        ("cnn", MINATAR, 128),
        ("cnn", spaces.Box(0.0, 1.0, (2, 7, 7), np.float32), 128),
    ],
)
def test_features_have_the_declared_size_and_every_weight_has_a_gradient(kind, space, size, norm, activation):
    torso = build_torso(space, TorsoConfig(kind=kind, norm=norm, activation=activation))
    features = torso(sample(space))
    assert features.shape == (3, size) == (3, torso.size)
    assert features.dtype == torch.float32
    features.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in torso.parameters())


@pytest.mark.parametrize(("norm", "kinds"), [("none", set()), ("layer", {1}), ("group", {8})])
def test_convolutions_use_group_norm_and_dense_layers_use_layer_norm(norm, kinds):
    torso = build_torso(ATARI, TorsoConfig(kind="nature", norm=norm))
    convs = [m for m in torso.modules() if isinstance(m, nn.GroupNorm)]
    dense = [m for m in torso.modules() if isinstance(m, nn.LayerNorm)]
    assert {m.num_groups for m in convs} == kinds
    assert (len(convs), len(dense)) == ((0, 0) if norm == "none" else (3, 1))


def test_nature_matches_the_network_of_the_paper():
    torso = build_torso(ATARI, TorsoConfig(kind="nature"))
    convs = [
        (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0]) for m in torso.modules() if type(m) is nn.Conv2d
    ]
    assert convs == [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
    assert sum(p.numel() for p in torso.parameters()) == 8_224 + 32_832 + 36_928 + 3136 * 512 + 512


def test_impala_has_two_residual_blocks_per_stage():
    torso = build_torso(ATARI, TorsoConfig(kind="impala"))
    assert [m.out_channels for m in torso.modules() if type(m) is nn.Conv2d] == [16] * 5 + [32] * 10
    assert torso.dense.linears[0].in_features == 32 * 11 * 11


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "gelu"])
def test_residual_block_adds_to_its_unmodified_input(activation):
    block = Residual(2, activation, "none")
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.linspace(-1.0, 1.0, 32).reshape(1, 2, 4, 4)
    assert torch.equal(block(x.clone()), x)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (VECTOR, "mlp"),
        (spaces.Discrete(4), "mlp"),
        (spaces.Box(0, 255, (128,), np.uint8), "mlp"),
        (spaces.Box(0, 255, (4, 128), np.uint8), "mlp"),
        (spaces.Box(-1.0, 1.0, (40, 40)), "mlp"),
        (spaces.Box(-1.0, 1.0, (4, 9, 9, 9)), "mlp"),
        (ATARI, "nature"),
        (COLOR_STACK, "nature"),
        (spaces.Box(-np.inf, np.inf, (1, 84, 84, 3)), "nature"),
        (spaces.Box(0, 255, (36, 36), np.uint8), "nature"),
        (spaces.Box(0, 255, (3, 35, 90), np.uint8), "cnn"),
        (MINATAR, "cnn"),
        (spaces.Dict(a=VECTOR, b=ATARI), "nature"),
        (spaces.Dict(a=MINATAR, b=ATARI), "cnn"),
        (spaces.Tuple((VECTOR, spaces.Discrete(2))), "mlp"),
    ],
)
def test_auto_chooses_the_torso_by_the_observation_space(space, kind):
    assert automatic(space) == kind
    assert isinstance(build_torso(space, TorsoConfig()), Torso)


@pytest.mark.parametrize(
    ("shape", "axis", "channels"),
    [
        ((4, 84, 84), 0, 4),
        ((10, 10, 7), -1, 7),
        ((84, 84, 1), -1, 1),
        ((9, 9), None, 1),
        ((4, 84, 84, 3), -1, 12),
        ((2, 3, 9, 9), 0, 6),
    ],
)
def test_channel_axis_is_detected(shape, axis, channels):
    found = image_shape(spaces.Box(0, 255, shape, np.uint8))
    assert (found.axis, found.channels) == (axis, channels)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_stack_of_color_frames_is_one_image_with_all_channels(first, grad):
    shape = (2, 3, 36, 40) if first else (2, 36, 40, 3)
    stacked = build_torso(spaces.Box(0, 255, shape, np.uint8), TorsoConfig(kind="nature"))
    plain = build_torso(spaces.Box(0, 255, (6, 36, 40), np.uint8), TorsoConfig(kind="nature"))
    plain.load_state_dict(stacked.state_dict())
    ring = torch.randint(256, (5, *shape[1:]), dtype=torch.uint8)  # neighboring stacks share frames, as from a replay
    stacks = ring.unfold(0, 2, 1).movedim(-1, 1)  # [4, 2, ...]
    by_hand = stacks if first else stacks.movedim(-1, 2)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(stacked(stacks), plain(by_hand.reshape(4, 6, 36, 40)))


def test_channels_first_and_last_give_the_same_features():
    config = TorsoConfig(kind="cnn")
    last, first = build_torso(MINATAR, config), build_torso(spaces.Box(0, 1, (4, 10, 10), np.uint8), config)
    first.load_state_dict(last.state_dict())
    x = sample(MINATAR)
    torch.testing.assert_close(last(x), first(x.permute(0, 3, 1, 2).contiguous()))


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (ATARI, 1 / 255),
        (spaces.Box(0, 1, (4, 10, 10), np.uint8), 1.0),
        (spaces.Box(0, 10, (4, 10, 10), np.uint8), 0.1),
        (spaces.Box(0.0, 255.0, (4, 10, 10), np.float32), 1.0),
        (spaces.Box(0.0, 255.0, (4, 10, 10), np.float64), 1.0),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_images_are_scaled_by_the_bounds_of_the_space(space, scale, grad):
    image = Image(space, lambda shape: nn.Sequential(nn.Conv2d(shape.channels, 2, 3, stride=2, padding=1), nn.Tanh()))
    x = sample(space)
    before = x.clone()
    with torch.set_grad_enabled(grad):
        seen = image(x)
    torch.testing.assert_close(seen, image.convs(x.float() * scale).flatten(1))
    assert x.dtype == before.dtype
    assert torch.equal(x, before)  # the caller's bytes are not modified


def test_images_enter_the_encoder_as_bytes():
    dtypes = []
    torso = build_torso(ATARI, TorsoConfig())
    torso.encoders[0].register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    torso(sample(ATARI))
    assert dtypes == [torch.uint8]


def test_channels_last_gives_the_same_features():
    torso = build_torso(ATARI, TorsoConfig())
    x = sample(ATARI)
    with torch.no_grad():
        plain = torso(x)
    torch.testing.assert_close(torso(x).detach(), plain, rtol=1e-4, atol=1e-5)
    assert all(p.is_contiguous() for p in torso.parameters())


def test_ram_is_scaled_and_other_integers_are_not():
    ram = torch.full((2, 128), 255, dtype=torch.uint8)
    assert torch.equal(Flat(spaces.Box(0, 255, (128,), np.uint8))(ram), torch.ones(2, 128))
    counts = torch.full((2, 3), 7)
    assert torch.equal(Flat(spaces.Box(0, 9, (3,), np.int64))(counts), torch.full((2, 3), 7.0))


def test_one_hot_joins_components_and_respects_the_start():
    assert OneHot(spaces.Discrete(3, start=-1))(torch.tensor([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    multi = OneHot(spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert multi(torch.tensor([[1, 5], [0, 7]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    grid = OneHot(spaces.MultiDiscrete([[2, 2], [2, 2]]))
    assert grid(torch.tensor([[[[0, 1], [1, 0]]]])).tolist() == [[[1, 0, 0, 1, 0, 1, 1, 0]]]  # [T, B, 2, 2]


@pytest.mark.parametrize(
    ("space", "joined"),
    [
        (spaces.Dict(a=VECTOR, b=spaces.Discrete(3)), 8),
        (spaces.Dict(a=spaces.Dict(x=VECTOR), b=spaces.Tuple((spaces.MultiBinary(4), spaces.Discrete(2)))), 11),
        (spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 1.0, ()))), 6),
        (spaces.Dict(image=MINATAR, vector=VECTOR), 32 * 4 * 4 + 5),
        (spaces.Dict(only=VECTOR), 5),
    ],
)
def test_nested_spaces_are_encoded_and_joined(space, joined):
    torso = build_torso(space, TorsoConfig(hidden=[]))
    assert torso(sample(space)).shape == (3, joined) == (3, torso.size)
    assert build_torso(space, TorsoConfig(hidden=[9]))(sample(space)).shape == (3, 9)


def test_joined_leaves_are_in_the_order_of_the_space():
    torso = build_torso(spaces.Dict(b=VECTOR, a=spaces.Discrete(2)), TorsoConfig(hidden=[]))
    obs = {"b": torch.arange(5.0).unsqueeze(0), "a": torch.tensor([1])}
    expected = {("a",): [0.0, 1.0], ("b",): [0.0, 1.0, 2.0, 3.0, 4.0]}
    assert torso(obs).tolist() == [[value for path in torso.paths for value in expected[path]]]
    assert set(torso.paths) == set(expected)


def test_user_torso_by_import_path_and_by_registered_name():
    torso = build_torso(VECTOR, TorsoConfig(kind=f"{__name__}:OwnTorso", args={"width": 7}))
    assert type(torso).__name__ == "OwnTorso"
    assert torso(sample(VECTOR)).shape == (3, 7)
    TORSOS.register("own", f"{__name__}:OwnTorso")
    assert build_torso(VECTOR, TorsoConfig(kind="own")).size == 3


@pytest.mark.parametrize(
    ("config", "space", "message"),
    [
        ({"kind": "natur"}, ATARI, r"unknown torso 'natur'; did you mean 'nature'"),
        ({"kind": "nature"}, VECTOR, r"nature needs an image"),
        ({"kind": "nature"}, MINATAR, r"kernel of convolution 2 \(4x4\) is larger than its input \(1x1\).*10x10"),
        ({"kind": "cnn", "kernels": [3, 9, 3]}, MINATAR, r"convolution 2 \(9x9\).*\(8x8\)"),
        ({"kind": "cnn", "kernels": [3, 3]}, MINATAR, r"equal lengths, not 3, 2 and 3"),
        ({}, spaces.Text(5), r"observation has the space Text"),
        ({}, spaces.Dict(a=VECTOR, b=spaces.Sequence(VECTOR)), r"observation/b has the space Sequence"),
        ({}, spaces.Dict(), r"no leaves"),
        ({}, spaces.Box(0, 255, (4, 84, 84, 9), np.uint8), r"2 or 3 axes, or 4 as a stack .*, not \(4, 84, 84, 9\)"),
        ({}, spaces.Box(0, 255, (2, 4, 84, 84, 3), np.uint8), r"2 or 3 axes, or 4 as a stack"),
        ({"kind": "mlp", "args": {"width": 3}}, VECTOR, r"torso.args are for a class of your own"),
        ({"kind": f"{__name__}:OwnTorso", "args": {"wdth": 3}}, VECTOR, r"unexpected keyword argument 'wdth'"),
        ({"kind": f"{__name__}:WithoutSize"}, VECTOR, r"int attribute `size`"),
    ],
)
def test_invalid_torsos_raise_clear_errors(config, space, message):
    with pytest.raises(UserError, match=message):
        build_torso(space, TorsoConfig(**config))


@pytest.mark.parametrize("space", [ATARI, PIXELS, MINATAR, spaces.Box(0, 255, (37, 53), np.uint8)])
@pytest.mark.parametrize(
    "config",
    [
        {"kind": "nature"},
        {"kind": "impala", "channels": [3, 5, 7, 2, 2, 2]},
        {"kind": "cnn", "channels": [3, 2], "kernels": [4, 3], "strides": [2, 3], "norm": "layer"},
    ],
)
def test_output_size_of_convolutions_is_computed_without_a_forward_pass(space, config):
    if config["kind"] == "nature" and space is MINATAR:
        pytest.skip("too small for these convolutions")
    image = build_torso(space, TorsoConfig(hidden=[], **config)).encoders[0]
    assert image(sample(space, n=1)).shape == (1, image.size)


@pytest.mark.parametrize("kind", ["cnn", "impala"])
def test_convolutions_without_layers_are_rejected(kind):
    with pytest.raises(UserError, match="at least one entry in channels"):
        build_torso(ATARI, TorsoConfig(kind=kind, channels=[], kernels=[], strides=[]))
