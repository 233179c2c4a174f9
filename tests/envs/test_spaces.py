import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from starling import tree
from starling.envs.spaces import (
    action_converter,
    check_spaces,
    observation_converter,
    observation_layout,
    plain_space,
    policy_space,
)
from starling.errors import UserError
from starling.types import ArraySpec, EnvSpec

SPACES = {
    "float64": (spaces.Box(-10, np.inf, (2, 3), np.float64), ((2, 3), "f4")),
    "float32": (spaces.Box(-1, 1, (2,), np.float32), ((2,), "f4")),
    "uint8": (spaces.Box(0, 255, (4, 8, 8), np.uint8), ((4, 8, 8), "u1")),
    "bool": (spaces.Box(0, 1, (5,), np.bool_), ((5,), "u1")),
    "scalar": (spaces.Box(0, 1, (), np.float64), ((), "f4")),
    "discrete": (spaces.Discrete(3, start=5), ((), "i8")),
    "multi": (spaces.MultiDiscrete([3, 2], start=[1, -1]), ((2,), "i8")),
    "narrow": (spaces.MultiDiscrete([3, 2], dtype=np.int32), ((2,), "i8")),
    "binary": (spaces.MultiBinary(4), ((4,), "i1")),
}


@pytest.mark.parametrize("name", SPACES)
def test_leaves_are_converted_to_their_layout(name):
    space, (shape, dtype) = SPACES[name]
    layout = observation_layout(space)
    assert layout == ArraySpec(shape, np.dtype(dtype))
    assert observation_layout(plain_space(space)) == layout
    batched = batch_space(space, 6)
    batched.seed(0)
    got = observation_converter(space)(batched.sample())
    assert tree.spec(got, lead=1) == layout
    assert all(plain_space(space).contains(np.asarray(row)) for row in got)


def test_bound_beyond_float32_becomes_infinite():
    plain = plain_space(spaces.Box(-1e300, 1.5, (1,), np.float64))
    assert (plain.low, plain.high) == (-np.inf, 1.5)


@pytest.mark.parametrize("name", ["discrete", "multi", "narrow", "binary"])
def test_discrete_actions_are_converted_back(name):
    space, _ = SPACES[name]
    batched = batch_space(space, 6)
    batched.seed(0)
    wanted = batched.sample()
    plain = observation_converter(space)(wanted)
    assert tree.spec(plain, lead=1) == observation_layout(policy_space(space))
    got = action_converter(space)(plain)
    assert got.dtype == space.dtype
    np.testing.assert_array_equal(got, wanted)


BOUNDED = {
    "plain": spaces.Box(-1, 1, (2,), np.float32),
    "wide": spaces.Box(-2, 2, (2,), np.float32),
    "uneven": spaces.Box(np.array([0.0, -0.4]), np.array([1e-3, 30.1]), dtype=np.float64),
    "float32 with odd ends": spaces.Box(np.float32([0.1, -0.7]), np.float32([0.3, 0.7])),
    "integers": spaces.Box(-3, 5, (2,), np.int8),
    "one value": spaces.Box(2, 2, (2,), np.float32),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_unit_actions_map_exactly_to_the_bounds_and_the_middle(name):
    space = BOUNDED[name]
    convert = action_converter(space)
    ends = convert(np.array([[-1, -1], [1, 1], [-7, -1.5], [1.0001, 80]], np.float32))
    assert ends.dtype == space.dtype
    np.testing.assert_array_equal(ends, [space.low, space.high, space.low, space.high])
    np.testing.assert_allclose(convert(np.zeros((1, 2), np.float32))[0], (space.low + space.high) / 2, rtol=1e-6)
    quarter = space.low + 0.75 * (space.high - space.low.astype(float))
    np.testing.assert_allclose(convert(np.full((1, 2), 0.5))[0], quarter, rtol=1e-6)
    assert policy_space(space) == spaces.Box(-1, 1, (2,), np.float32)
    assert observation_layout(policy_space(space)) == ArraySpec((2,), np.dtype(np.float32))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.float32([-1.0, -np.inf]), np.float32([1.0, 1.0])),
        spaces.Box(np.float32([-1.0, -1.0]), np.float32([1.0, np.inf])),
        spaces.Box(-1, np.finfo(np.float32).max, (2,), np.float32),
    ],
)
def test_unbounded_actions_are_rejected(space):
    with pytest.raises(UserError, match=r"env 'x': action [01] of 2 has no bounds .*a Box with finite low and high"):
        check_spaces(EnvSpec("x", spaces.Discrete(2), space))


def test_nested_spaces_become_trees():
    space = spaces.Dict({"b": spaces.Tuple([SPACES["float64"][0], SPACES["discrete"][0]]), "a": SPACES["bool"][0]})
    layout = observation_layout(space)
    assert set(layout) == {"a", "b"}
    assert type(layout["b"]) is tuple
    batched = batch_space(space, 4)
    batched.seed(0)
    sample = batched.sample()
    got = observation_converter(space)(sample)
    assert tree.spec(got, lead=1) == layout
    np.testing.assert_array_equal(got["b"][1], sample["b"][1] - 5)
    assert list(got) == list(layout)


def test_conversion_copies_only_if_necessary():
    image = np.zeros((2, 4, 8, 8), np.uint8)
    assert observation_converter(SPACES["uint8"][0])(image) is image
    transposed = np.zeros((3, 2), np.float32).T
    got = observation_converter(spaces.Box(0, 1, (3,), np.float32))(transposed)
    assert got.flags.c_contiguous


BAD = spaces.Sequence(spaces.Box(0, 1, (1,)))
GRAPH = spaces.Graph(spaces.Box(0, 1, (1,)), None)
ONE_OF = spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)])
FINE = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Text(3), FINE, "observation 'space' is a Text"),
        (spaces.Dict({"a": spaces.Tuple([FINE, BAD])}), FINE, "observation 'a/1' is a Sequence"),
        (spaces.Dict({"deep": spaces.Dict({"g": GRAPH})}), FINE, "observation 'deep/g' is a Graph"),
        (ONE_OF, FINE, "observation 'space' is a OneOf"),
        (spaces.Dict({}), FINE, "contains no arrays"),
        (FINE, spaces.Dict({"a": FINE}), "the action space is a Dict"),
        (FINE, spaces.Tuple([FINE]), "the action space is a Tuple"),
        (FINE, spaces.Text(2), "the action space is a Text"),
    ],
)
def test_unsupported_spaces_are_rejected_by_name(observation, action, message):
    with pytest.raises(UserError, match=f"env 'x': .*{message}"):
        check_spaces(EnvSpec("x", observation, action))


def test_too_large_observation_is_rejected():
    part = spaces.Box(0, 255, (1024, 1024), np.uint8)
    check_spaces(EnvSpec("x", spaces.Tuple([part] * 1024), FINE))
    with pytest.raises(UserError, match=r"env 'x': an observation takes 1\.1 GiB, and more than 1 GiB cannot be used"):
        check_spaces(EnvSpec("x", spaces.Tuple([part] * 1124), FINE))


@pytest.mark.parametrize("name", SPACES)
def test_supported_spaces_pass(name):
    action = spaces.Discrete(2) if name == "float64" else SPACES[name][0]  # float64 has no upper bound
    check_spaces(EnvSpec("x", spaces.Dict({"a": SPACES[name][0]}), action))
