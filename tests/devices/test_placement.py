"""Which device each part of a run is on, on a machine that seems to have some GPUs."""

import pytest
import torch

from starling import hardware
from starling.config.load import from_dict, load, to_dict
from starling.errors import UserError
from starling.hardware import (
    actors_device,
    autocast_dtype,
    check_devices,
    device,
    evaluator_device,
    inference_device,
    settle_precision,
)

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(n)`: let torch see so many GPUs of a compute capability."""

    def set_up(count, capability=(8, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # it says so of GPUs that only emulate it
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where: capability)

    set_up(1)
    return set_up


def config_of(*overrides, preset="impala-cartpole"):
    return load(preset, ["runtime=processes", *overrides])


def cuda(index=None):
    return torch.device("cuda") if index is None else torch.device("cuda", index)


@pytest.mark.parametrize(
    ("overrides", "learner", "actors", "server"),
    [
        ([], cuda(), CPU, cuda()),
        (["device=cpu"], CPU, CPU, CPU),
        (["device=cuda:0"], cuda(0), CPU, cuda(0)),
        (["device.actors=cuda"], cuda(), cuda(), cuda()),
        (["device=cuda:0", "device.actors=cuda:0", "device.inference=cpu"], cuda(0), cuda(0), CPU),
        (["device={learner: cpu, inference: cuda}"], CPU, CPU, cuda()),
        (["runtime=inline"], cuda(), cuda(), cuda()),
        (["runtime=ray"], cuda(), CPU, CPU),
        (["runtime=ray", "ray.actor.gpus=0.1"], cuda(), cuda(), CPU),
        (["runtime=ray", "ray.inference.gpus=1"], cuda(), CPU, cuda()),
    ],
)
def test_actors_are_on_the_cpu_unless_asked_and_the_server_is_beside_its_learner(
    overrides, learner, actors, server, gpus
):
    config = config_of(*overrides)
    assert (device(config), actors_device(config), inference_device(config)) == (learner, actors, server)
    assert from_dict(to_dict(config)) == config


def test_evaluator_is_where_actors_are_but_on_a_cluster_where_its_place_is(gpus):
    assert evaluator_device(config_of()) == CPU
    assert evaluator_device(config_of("device.actors=cuda")) == cuda()
    assert evaluator_device(config_of("runtime=ray", "ray.actor.gpus=1", "device.actors=cuda")) == CPU
    assert evaluator_device(config_of("runtime=ray", "ray.evaluator.gpus=1")) == cuda()


def test_learners_take_one_gpu_each_with_their_server(gpus):
    gpus(2)
    config = config_of("learners=2", "env.num=4")
    assert [device(config, rank) for rank in range(2)] == [cuda(0), cuda(1)]
    assert [inference_device(config, rank) for rank in range(2)] == [cuda(0), cuda(1)]
    check_devices(config)


@pytest.mark.parametrize(
    ("count", "where", "message"),
    [
        (
            1,
            "auto",
            "learners=2 need a GPU each, and device=auto is 1 here: use fewer learners, or device.backend=gloo to",
        ),
        (2, "cuda:1", "learners=2 need a GPU each, and device=cuda:1 is one here: use fewer learners, or"),
        (0, "cuda", "device=cuda was asked for, but torch sees no GPU; use device=cpu"),
    ],
)
def test_two_learners_on_one_gpu_are_refused(count, where, message, gpus):
    gpus(count)
    with pytest.raises(UserError) as refused:
        check_devices(config_of("learners=2", "env.num=4", f"device={where}"))
    assert str(refused.value).startswith(message)


def test_learners_share_a_gpu_with_gloo(gpus):
    check_devices(config := config_of("learners=2", "env.num=4", "device.backend=gloo"))
    assert [device(config, rank) for rank in range(2)] == [cuda(0)] * 2
    check_devices(config_of("learners=2", "env.num=4", "device={learner: 'cuda:0', backend: gloo}"))


@pytest.mark.parametrize("key", ["device", "device.actors", "device.inference"])
def test_a_missing_gpu_is_named_by_its_key(key, gpus):
    gpus(2)
    with pytest.raises(UserError, match=f"^{key}=cuda:2 was asked for, but torch sees 2 GPU"):
        check_devices(config_of(f"{key}=cuda:2"))


def test_an_inline_run_has_one_device():
    with pytest.raises(UserError, match=r"^device\.actors and device\.inference need processes"):
        load("ppo-cartpole", ["device.actors=cpu"])


def test_one_value_is_saved_as_one_value_and_a_section_as_a_section():
    assert to_dict(config_of("device.learner=cuda:1"))["device"] == "cuda:1"
    section = to_dict(config_of("device=cuda:1", "device.actors=cuda"))["device"]
    assert section == {"learner": "cuda:1", "actors": "cuda", "inference": None, "backend": "auto"}


@pytest.mark.parametrize(
    ("capability", "precision", "on_gpu"),
    [((9, 0), "bfloat16", torch.bfloat16), ((7, 5), "float16", torch.float16), ((6, 1), "float32", None)],
)
def test_auto_precision_is_the_best_of_the_gpu_and_not_for_actors_on_a_cpu_without_it(
    capability, precision, on_gpu, gpus, monkeypatch, tmp_path
):
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "none")
    gpus(1, capability)
    config = settle_precision(config_of("precision=auto"))
    assert config.precision == precision
    assert autocast_dtype(config, cuda()) == on_gpu
    assert autocast_dtype(config, CPU) is None


def test_actors_on_a_cpu_act_in_bfloat16_if_that_has_instructions_for_it(gpus, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("flags : avx512_bf16\n")
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    assert autocast_dtype(config_of("precision=bfloat16"), CPU) == torch.bfloat16
    assert autocast_dtype(config_of("precision=float16"), CPU) is None


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_on_a_cpu_acts_in_the_precision_that_it_learns_in(precision):
    config = config_of("device=cpu", f"precision={precision}")
    assert autocast_dtype(config, CPU) == getattr(torch, precision)


def test_modes_of_gpus_are_refused_on_a_cpu():
    with pytest.raises(UserError, match=r"^precision=tf32 is a mode of GPUs; use precision=float32"):
        settle_precision(config_of("device=cpu", "precision=tf32"))
    with pytest.raises(UserError, match=r"^compile=reduce-overhead records CUDA graphs, which need a GPU; use"):
        hardware.check_compiler(config_of("device=cpu", "compile=reduce-overhead"))


def test_using_a_gpu_makes_it_current_and_sets_the_precision_of_its_products(gpus, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    before = torch.get_float32_matmul_precision()
    try:
        hardware.use_device(CPU, config_of("precision=tf32"))
        assert (chosen, torch.get_float32_matmul_precision()) == ([], before)
        hardware.use_device(cuda(1), config_of("precision=float32"))
        assert (chosen, torch.get_float32_matmul_precision()) == ([cuda(1)], before)
        hardware.use_device(cuda(1), config_of("precision=tf32"))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
