"""Run plans: the default number of actors, network size, devices, threads."""

import time

import pytest

from starling.config.device import DeviceConfig
from starling.config.load import load, preset_names
from starling.envs.registry import env_spec
from starling.errors import UserError
from starling.hardware import cores
from starling.launch.plan import NetworkSize, RunPlan, build_model, plan_threads, validated_plan

CORES = [*range(1, 17), 24, 32, 48, 64, 96, 127, 128]
TOPOLOGIES = [
    ["runtime=inline"],
    ["runtime=processes"],
    ["runtime=processes", "inference=central"],
    ["runtime=processes", "learners=2"],
    ["runtime=processes", "learners=3"],
    ["runtime=ray"],
    ["runtime=ray", "ray.shards=2"],
]


def works_with_any_number_of_actors(config, env, fewest):
    for actors in range(fewest, config.env.num + 1):
        try:
            RunPlan.from_config(config.model_copy(update={"actors": actors}), env)
        except UserError:
            continue
        return True
    return False


@pytest.mark.parametrize("preset", preset_names())
def test_default_number_of_actors_works_wherever_any_number_does(preset, monkeypatch):
    env = None
    for settings in TOPOLOGIES:
        config = load(preset, [*settings, "env.stagger=0"])  # a stagger is checked with a real env, which is slow
        env = env or env_spec(config.env)
        fewest = max(config.learners, config.ray.shards if config.runtime == "ray" else 1)
        possible = works_with_any_number_of_actors(config, env, fewest)
        queue_with_shards = "ray.shards=2" in settings and config.algo.name in ("ppo", "pqn", "impala", "impact")
        assert possible or queue_with_shards or config.learners > 1 or fewest > config.env.num, (preset, settings)
        for number in CORES if possible else ():
            monkeypatch.setenv("STARLING_CORES", str(number))
            run_plan = RunPlan.from_config(config, env)
            assert fewest <= run_plan.actors <= config.env.num, (settings, number)
            if config.runtime == "inline":
                assert run_plan.actors == 1
            elif not run_plan.synchronous:
                assert run_plan.actors == min(max(fewest, number), config.env.num), (settings, number)


@pytest.mark.parametrize(("number", "actors"), [(1, 1), (2, 2), (3, 2), (4, 4), (6, 4), (8, 8), (16, 8)])
def test_synchronous_actors_form_equal_groups(number, actors, monkeypatch):
    monkeypatch.setenv("STARLING_CORES", str(number))
    run_plan = RunPlan.from_config(load("ppo-cartpole", ["runtime=processes", "env.num=8"]))
    assert run_plan.actors == actors
    assert {len(group.env_index) for group in run_plan.groups().values()} == {8 // actors}


def test_more_actors_than_cores_if_fewer_cannot_fill_a_batch(monkeypatch):
    monkeypatch.setenv("STARLING_CORES", "1")
    run_plan = RunPlan.from_config(
        load("ppo-cartpole", ["runtime=processes", "env.num=4", "algo.batch_envs=6", "algo.minibatches=2"])
    )
    assert run_plan.actors == 2  # one actor sends fragments of 4 envs, which never add up to 6


def test_impossible_number_of_actors_is_rejected():
    with pytest.raises(UserError, match="equally many envs"):
        RunPlan.from_config(load("ppo-cartpole", ["runtime=processes", "env.num=8", "actors=3"]))


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_invalid_number_of_cores_is_a_one_line_error(wrong, monkeypatch):
    monkeypatch.setenv("STARLING_CORES", wrong)
    with pytest.raises(UserError, match=f"STARLING_CORES={wrong} is not a number of cores"):
        cores()


def test_cores_default_to_the_usable_ones_and_can_be_set(monkeypatch):
    monkeypatch.delenv("STARLING_CORES", raising=False)
    assert cores() >= 1
    monkeypatch.setenv("STARLING_CORES", "7")
    assert cores() == 7


@pytest.mark.parametrize(
    "preset", ["ppo-cartpole", "sac-pendulum", "r2d2-memory", "ngu-deepsea", "impala-minatar-breakout"]
)
def test_network_size_is_computed_without_allocating_it(preset):
    run = RunPlan.from_config(load(preset))
    model = build_model(run)
    assert run.network_size == NetworkSize(
        sum(parameter.numel() for parameter in model.parameters()),
        sum(value.numel() * value.element_size() for value in model.state_dict().values()),
    )


@pytest.mark.parametrize("hidden", [[200_000, 200_000], [100_000] * 5])
def test_network_larger_than_memory_is_rejected_before_it_is_built(hidden):
    config = load("ppo-cartpole", [f"net.torso.hidden={hidden}"])
    with pytest.raises(UserError, match=r"^the network has [\d,]+ parameters, which take [\d,.]+ GB, 2 times with"):
        validated_plan(config)


def test_network_too_large_to_build_is_rejected():
    run = RunPlan.from_config(load("ppo-cartpole", ["net.torso.hidden=[900000, 900000]"]))
    with pytest.raises(UserError, match="does not fit into memory"):
        build_model(run)


@pytest.mark.parametrize("device", ["meta", "mps", "xla", "cuda:99", "cpu:x", "²", ""])
def test_invalid_device_is_rejected(device):
    config = load("ppo-cartpole")
    with pytest.raises(UserError, match=r"^device="):
        validated_plan(config.model_copy(update={"device": DeviceConfig(learner=device)}))


@pytest.mark.parametrize("preset", ["dqn-cartpole", "ppo-cartpole", "impala-cartpole"])
@pytest.mark.parametrize("num", [99_991, 100_000])
def test_many_envs_are_distributed_or_rejected_quickly(preset, num):
    began = time.process_time()
    try:
        RunPlan.from_config(load(preset, [f"env.num={num}", "runtime=processes"]))
    except UserError as error:
        refused = str(error)
        assert "\n" not in refused
    assert time.process_time() - began < 5


def test_learner_threads_depend_on_the_size_of_the_network(monkeypatch):
    monkeypatch.setattr("starling.launch.plan.cores", lambda: 4)

    def threads(preset, *settings):
        return plan_threads(RunPlan.from_config(load(preset, list(settings))))

    assert threads("sac-pendulum", "net.torso.hidden=[64,64]") == 1, "a second one takes longer to wake than to work"
    assert threads("sac-pendulum", "net.torso.hidden=[128,128]") == 2
    assert threads("sac-halfcheetah") == 2, "hidden layers of 256 by default"
    assert threads("sac-halfcheetah", "threads=1") == 1
    assert threads("sac-halfcheetah", "runtime=processes", "env.num=3", "actors=3") == 1, "actors have the others"
    assert threads("dqn-cartpole") == 1
    assert threads("dqn-cartpole", "threads=2") == 2
    assert threads("impala-cartpole", "net.core.kind=lstm") == 1
    assert threads("dqn-pong") == 4, "images keep all of them busy"
