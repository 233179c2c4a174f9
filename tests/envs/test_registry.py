import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from starling.config.env import EnvConfig
from starling.envs import registry
from starling.envs import wrappers as wrappers_module
from starling.envs.catalog import known_ids
from starling.envs.faults import EnvFault
from starling.envs.registry import env_spec, make_env, register_env
from starling.envs.toy import Identity
from starling.errors import UserError
from starling.types import StackSpec

HERE = __name__


def single(n=3):
    return Identity(n)


def vector(num_envs, length=500):
    return CartPoleVectorEnv(num_envs, max_episode_steps=length)


def too_few_envs(num_envs):
    return CartPoleVectorEnv(num_envs - 1)


def number_of_envs(num_envs):
    return num_envs


def nothing():
    return None


def broken():
    raise TypeError("the factory's own bug")


NOT_A_FACTORY = 3


@pytest.fixture
def _this_file_as_my_envs(monkeypatch):
    """Make this file importable as `my_envs`."""
    monkeypatch.setitem(sys.modules, "my_envs", sys.modules[HERE])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "CartPol-v1"}, r"unknown environment 'CartPol-v1'; did you mean .*'CartPole-v1'"),
        ({"id": "toy/identty"}, r"did you mean .*'toy/identity'"),
        (
            {"id": "procgen-coinrun-v0"},
            r"'procgen-coinrun-v0' cannot be made here: .* env.id=envpool/CoinrunHard",
        ),
        ({"id": "dmlab/rooms"}, r"DeepMind Lab has no wheel: build it .* env.id=package.module:factory"),
        ({"id": "DeepMind_Lab-rooms"}, r"DeepMind Lab has no wheel"),
        ({"id": "ALE/Pung-v5"}, r"unknown environment 'ALE/Pung-v5'; did you mean .*'ALE/Pong-v5'"),
        ({"id": "MinAtar/Breakot-v1"}, r"did you mean .*'MinAtar/Breakout-v1'"),
        ({"id": "no_such_package.envs:make"}, r"cannot import 'no_such_package.envs:make'"),
        ({"id": "no_such_package:Env-v0"}, r"cannot import 'no_such_package'"),
        ({"id": "gymnasium:NoSuchEnv-v0"}, r"env 'gymnasium:NoSuchEnv-v0': .*NoSuchEnv"),
        ({"id": "my_envs:missing"}, r"module 'my_envs' has no 'missing'"),
        ({"id": "my_envs:NOT_A_FACTORY"}, r"names a int; it must be a subclass of gymnasium.Env"),
        ({"id": "my_envs:nothing"}, r"gave a NoneType, not a gymnasium.Env"),
        ({"id": "my_envs:number_of_envs"}, r"takes num_envs but gave a int, not a VectorEnv"),
        ({"id": "my_envs:too_few_envs"}, r"made 1 envs instead of num_envs=2"),
        ({"id": "my_envs:vector", "vectorize": "sync"}, r"is a vector env: it takes no wrappers"),
        ({"id": "my_envs:vector", "wrappers": [{"name": "ClipReward"}]}, r"is a vector env: it takes no wrappers"),
        ({"id": "my_envs:single", "args": {"m": 1}}, r"does not accept env.args: .*'m'"),
        ({"id": "CartPole-v1", "args": {"m": 1}}, r"does not accept env.args: .*'m'"),
        ({"id": "CartPole-v1", "args": {"m": 1}, "vectorize": "sync"}, r"does not accept env.args: .*'m'"),
        ({"id": "MinAtar/Breakout-v1", "args": {"m": 1}}, r"does not accept env.args: .*'m'"),
        ({"id": "ALE/Pong-v5", "args": {"stak": 1}}, r"env.args.stak is not for ALE.* env.atari; did you mean 'stack'"),
        ({"id": "toy/truncation", "args": {"ends": "never"}}, r"ends must be truncated or terminated"),
        ({"id": "toy/dict", "args": {"answer": "42"}}, r"answer must be vector, image or index"),
        (
            {"id": "CartPole-v1", "wrappers": [{"name": "TimeLimitt"}]},
            r"unknown wrapper 'TimeLimitt'; did you mean 'TimeLimit'",
        ),
        ({"id": "CartPole-v1", "wrappers": [{"name": "vector"}]}, r"unknown wrapper 'vector'"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "my_envs:nope"}]}, r"has no 'nope'"),
        (
            {"id": "CartPole-v1", "wrappers": [{"name": "TimeLimit", "args": {"steps": 3}}]},
            r"does not accept its arg.*steps",
        ),
        ({"id": "CartPole-v1", "wrappers": [{"name": "my_envs:clip"}]}, r"gave a str, not a gymnasium.Env"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "NormalizeObservation"}]}, r"keeps its own statistics"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "TransformReward"}]}, r"needs a function"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "NumpyToTorch"}]}, r"gives arrays of another library"),
        ({"id": "Ant-v2"}, r"'Ant-v2' cannot be made with the installed packages; did you mean 'Ant-v5'"),
        ({"id": "Pusher-v4"}, r"'Pusher-v4' cannot be made .*; did you mean 'Pusher-v5'"),
        ({"id": "CartPole-v1", "wrappers": [{"name": "Autoreset"}]}, r"reset envs a second time"),
    ],
)
@pytest.mark.usefixtures("_this_file_as_my_envs")
def test_invalid_envs_are_one_line_errors(fields, message):
    with pytest.raises(UserError, match=message) as caught:
        make_env(EnvConfig(**fields), 2)
    assert "\n" not in str(caught.value)


def clip(_env):
    return "not an env"


@pytest.mark.parametrize(
    ("wrapper", "shape"),
    [
        ({"name": "ReshapeObservation", "args": {"shape": [2, 2]}}, (2, 2)),
        ({"name": "my_envs:Windows", "args": {"sizes": [[1, 2], [3, 4]], "names": ["a"]}}, (4,)),
    ],
)
@pytest.mark.usefixtures("_this_file_as_my_envs")
def test_lists_become_tuples_if_the_wrapper_declares_tuples(wrapper, shape):
    assert env_spec(EnvConfig(id="CartPole-v1", wrappers=[wrapper])).observation.shape == shape


class Windows(gymnasium.Wrapper):
    """A wrapper whose arguments are tuples of tuples and a list."""

    def __init__(self, env, sizes: tuple[tuple[int, int], ...], names: list[str]):
        assert sizes == ((1, 2), (3, 4))
        assert names == ["a"]
        super().__init__(env)


RESIZED = EnvConfig(
    id="ALE/Pong-v5",
    atari={"stack": 1},
    wrappers=[
        {"name": "ReshapeObservation", "args": {"shape": [84, 84]}},
        {"name": "ResizeObservation", "args": {"shape": [42, 48]}},
    ],
)


def test_images_are_resized_by_a_wrapper():
    assert env_spec(RESIZED).observation.shape == (42, 48)


def test_resizing_without_opencv_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UserError, match=r"^wrapper 'ResizeObservation' needs OpenCV: pip install '.*\[opencv\]'$"):
        env_spec(RESIZED)


def test_only_usable_wrappers_are_suggested():
    for name in ("NormalizeObservations", "TransformObservations", "NumpyToTorchs", "autoreset"):
        with pytest.raises(UserError) as caught:
            make_env(EnvConfig(id="CartPole-v1", wrappers=[{"name": name}]), 1)
        suggested = str(caught.value).partition("did you mean")[2]
        assert not any(refused in suggested for refused in wrappers_module._REFUSED)


def test_only_names_defined_in_a_module_are_suggested(monkeypatch, tmp_path):
    (tmp_path / "many_names.py").write_text("from collections import Counter\ndef build_env():\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"did you mean 'build_env'\?$"):
        make_env(EnvConfig(id="many_names:build_evn"), 1)
    with pytest.raises(UserError, match=r"module 'many_names' has no 'Countr'$"):
        make_env(EnvConfig(id="many_names:Countr"), 1)


@pytest.mark.usefixtures("_this_file_as_my_envs")
def test_bug_in_a_factory_is_a_fault_and_not_a_user_error():
    with pytest.raises(EnvFault, match="raised in construction: TypeError: the factory's own bug"):
        make_env(EnvConfig(id="my_envs:broken"), 1)


@pytest.mark.parametrize(
    ("id", "modules", "extra"),
    [
        ("ALE/Pong-v5", ["ale_py", "ale_py.roms"], r"starling-rl\[atari\]"),
        ("MinAtar/Breakout-v1", ["minatar"], r"starling-rl\[minatar\]"),
    ],
)
def test_missing_package_names_its_extra(monkeypatch, id, modules, extra):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"pip install '{extra}'"):
        make_env(EnvConfig(id=id), 1)
    assert "toy/rooms" in known_ids()


@pytest.mark.usefixtures("_this_file_as_my_envs")
def test_factories_by_import_path_and_by_registered_name():
    assert env_spec(EnvConfig(id="my_envs:single", args={"n": 5})).action.n == 5
    env = make_env(EnvConfig(id="my_envs:vector", args={"length": 3}), 4)
    env.reset(np.arange(4))
    ends = [env.step(np.zeros(4, np.int64)).truncated.any() for _ in range(3)]
    assert ends == [False, False, True]
    register_env("mine/identity", single)
    register_env("mine/identity", single)
    assert "mine/identity" in known_ids()
    assert env_spec(EnvConfig(id="mine/identity")).action.n == 3
    with pytest.raises(UserError, match="already registered"):
        register_env("mine/identity", vector)


def test_gymnasiums_vector_env_is_used_only_where_possible(monkeypatch):
    made = []
    monkeypatch.setattr(registry, "VectorEnv", lambda env, *_: made.append(type(env).__name__))
    for fields in ({}, {"vectorize": "sync"}, {"wrappers": [{"name": "ClipReward", "args": {"max_reward": 1}}]}):
        make_env(EnvConfig(id="CartPole-v1", **fields), 4)
    make_env(EnvConfig(id="CartPole-v1"), 4, render=True)
    make_env(EnvConfig(id="CartPole-v1"), 3)  # for so few envs SyncVectorEnv is faster
    make_env(EnvConfig(id="Acrobot-v1"), 4)
    assert made == ["CartPoleVectorEnv"] + ["SyncVectorEnv"] * 5


def test_arguments_reach_the_constructor_with_and_without_vectorization():
    for vectorize in ("auto", "sync"):
        config = EnvConfig(id="CartPole-v1", args={"sutton_barto_reward": True}, vectorize=vectorize)
        env = make_env(config, 1)
        env.reset(np.array([0]))
        assert env.step(np.array([0])).reward == [0.0]


def test_module_in_an_id_may_register_gymnasium_ids(monkeypatch, tmp_path):
    (tmp_path / "registers_envs.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'starling.envs.toy:Identity', max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env(EnvConfig(id="registers_envs:Mine-v0"), 1)
    env.reset(np.array([0]))
    assert [bool(env.step(np.array([0])).truncated[0]) for _ in range(2)] == [False, True]
    gymnasium.registry.pop("Mine-v0")


STACK = {"name": "FrameStackObservation", "args": {"stack_size": 3}}
CLIP = {"name": "ClipReward", "args": {"max_reward": 1}}
FLAT = {"name": "FlattenObservation"}


@pytest.mark.parametrize(
    ("fields", "stack", "frames"),
    [
        ({"id": "CartPole-v1"}, None, 1),
        ({"id": "CartPole-v1", "wrappers": [STACK]}, StackSpec("", 0, 3), 1),
        ({"id": "CartPole-v1", "wrappers": [STACK, FLAT]}, None, 1),
        ({"id": "CartPole-v1", "wrappers": [{**STACK, "args": {"stack_size": 1}}]}, None, 1),
        ({"id": "toy/dict", "wrappers": [STACK]}, None, 1),
        ({"id": "ALE/Pong-v5"}, StackSpec("", 0, 4), 4),
        ({"id": "ALE/Pong-v5", "atari": {"stack": 1, "frame_skip": 2}}, None, 2),
        ({"id": "ALE/Pong-v5", "wrappers": [CLIP]}, StackSpec("", 0, 4), 4),
        ({"id": "ALE/Pong-v5", "wrappers": [FLAT]}, None, 4),
    ],
)
def test_frame_stacks_are_declared_in_the_spec(fields, stack, frames):
    spec = env_spec(EnvConfig(**fields))
    assert (spec.id, spec.stack, spec.frames_per_step) == (fields["id"], stack, frames)


@pytest.mark.parametrize("id", ["toy/rooms", "MinAtar/Seaquest-v1", "ALE/Pong-v5"])
def test_rendered_images(id):
    env = make_env(EnvConfig(id=id), 2, render=True)
    env.reset(np.array([1, 2]))
    env.step(np.zeros(2, np.int64))
    for frame in (env.render(0), env.render(1)):
        assert (frame.ndim, frame.shape[2], frame.dtype) == (3, 3, np.uint8)
        assert len(np.unique(frame)) > 1
    env.close()


def test_importing_the_registry_imports_no_game():
    import subprocess

    code = "import sys, starling.envs.registry; print([m for m in ('ale_py', 'minatar', 'pygame') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
