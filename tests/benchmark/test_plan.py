"""Predicted sizes compared with real ones, rejected plans and their advice, and predicted speed."""

import gc
from dataclasses import replace

import pytest
import torch

from starling import tree
from starling.config.load import load
from starling.errors import UserError
from starling.hardware import Room
from starling.launch.fitting import in_words, refuse
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.launch.runtime import build_runtime
from starling.launch.sizes import learning_bytes, predict_sizes
from starling.runtime.shared_memory import AnonymousSharedMemory
from starling.tools.benchmark.costs import Cost, Costs
from starling.tools.benchmark.plan import predict_speed
from starling.tools.benchmark.workload import Work

PLENTY = Room(memory=2**40, disk=2**40)


def sizes_of(preset, *overrides):
    run_plan = RunPlan.from_config(load(preset, overrides))
    model = build_model(run_plan)
    return run_plan, predict_sizes(run_plan, model, layout_of(run_plan, model))


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("optimizer", ["{name: Adam}", "{name: RMSprop, args: {momentum: 0.9}}", "{name: SGD}"])
@pytest.mark.parametrize("preset", ["dqn-cartpole", "ppo-cartpole"])
def test_predicted_learner_memory_matches_a_real_learner(preset, optimizer):
    run_plan = RunPlan.from_config(load(preset, [f"algo.optimizer={optimizer}"]))
    model = build_model(run_plan)
    predicted = learning_bytes(run_plan, model)
    held = learner_bytes(run_plan)
    assert held <= predicted <= 1.01 * held


def learner_bytes(run_plan):
    learner = Work(run_plan).learner
    state = learner.get_state()
    gradients = [optimizer.gradient for optimizer in learner._optimizers.values()]
    moment_values = [
        optimizer["moments"]["0"].values() for optimizer in state["optimizers"].values() if optimizer["moments"]
    ]
    moments = [moment for values in moment_values for moment in values if isinstance(moment, torch.Tensor)]
    return bytes_of([*state["model"].values(), *state["target"].values(), *gradients, *moments])


def shared_memory_bytes():
    return sum(shared_memory.size for shared_memory in gc.get_objects() if type(shared_memory) is AnonymousSharedMemory)


@pytest.mark.parametrize(
    "settings",
    [["actors=4"], ["actors=2", "algo.rollout=512", "net.torso.hidden=[256]"], ["actors=4", "learners=2"]],
)
def test_predicted_shared_memory_matches_the_runtime(settings):
    run_plan, sizes = sizes_of("ppo-cartpole", "runtime=processes", *settings)
    gc.collect()
    before = shared_memory_bytes()
    runtime = build_runtime(run_plan)
    taken = shared_memory_bytes() - before
    runtime.close()
    assert sizes.shared == pytest.approx(taken, rel=0.02)


def test_memory_grows_with_the_number_of_processes():
    _, inline = sizes_of("ppo-cartpole")
    _, two = sizes_of("ppo-cartpole", "runtime=processes", "actors=2")
    _, four = sizes_of("ppo-cartpole", "runtime=processes", "actors=4")
    assert inline.shared == 0
    assert inline.memory < two.memory < four.memory


def test_predicted_memory_of_intrinsic_states_matches_real_ones():
    run_plan, sizes = sizes_of("ngu-deepsea", "algo.meta={}")
    held = bytes_of(tree.leaves(run_plan.algorithm.intrinsic_state(16)))
    assert held > 16 * 20 * 33 * 4
    assert sizes.memories == 2 * held  # inline they are also copied for a checkpoint
    _, with_evaluator = sizes_of("ngu-deepsea", "algo.meta={}", "runtime=processes", "eval={every: 1000, episodes: 4}")
    assert with_evaluator.memories == held * (16 + 4) // 16
    assert sizes_of("ppo-cartpole")[1].memories == 0


def test_checkpoint_without_tables_is_small_and_needs_no_copy():
    _, with_tables = sizes_of("dqn-minatar-breakout")
    _, without_tables = sizes_of("dqn-minatar-breakout", "checkpoint.replay=false")
    assert without_tables.saving == 0
    assert 0.2 * with_tables.tables < with_tables.saving < 0.6 * with_tables.tables, (
        "most of it goes to disk from where it is"
    )
    assert without_tables.checkpoint < 0.1 * with_tables.checkpoint


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ([], 5),  # three, the best one, and a new one before the oldest is removed
        (["checkpoint.keep=1", "checkpoint.best=false"], 2),
        (["checkpoint.keep_every=100000"], 15),
        (["checkpoint.every=400000"], 3),  # no more are ever written
    ],
)
def test_maximal_number_of_checkpoints(settings, count):
    assert sizes_of("dqn-minatar-breakout", *settings)[1].checkpoints == count


def rejection(room, *arguments):
    run_plan, sizes = sizes_of(*arguments)
    with pytest.raises(UserError) as caught:
        refuse(run_plan, sizes, room)
    line = str(caught.value)
    assert "\n" not in line
    return line


def proposed_override(line, key):
    """The override that an error proposes for `key`."""
    return f"{key}={line.split(f'lower {key} from ')[1].split(' to ')[1].split(',')[0]}"


def test_run_that_fits_is_accepted():
    refuse(*sizes_of("dqn-minatar-breakout"), PLENTY)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["dqn-cartpole", "algo.capacity=1000000000000"], "algo.capacity"),
        (["dqn-minatar-breakout", "algo.capacity=100000000"], "algo.capacity"),
        (["ppo-minatar-breakout", "env.num=100000", "algo.minibatches=1"], "env.num"),
        (["dqn-cartpole", "algo.batch=60000000", "algo.capacity=60000003"], "algo.batch"),
        (["impala-cartpole", "env.num=64", "runtime=processes", "actors=64"], "actors"),
        (["ngu-deepsea", "algo.episodic.capacity=1000000000000"], "algo.episodic.capacity"),
        (["ngu-deepsea", "algo.episodic.capacity=6000000", "runtime=processes"], "algo.episodic.capacity"),
        (["ppo-rnd-deepsea", "curiosity=[{kind: rnd}, {kind: episodic, capacity: 9000000}]"], "curiosity.1.capacity"),
    ],
)
def test_proposed_override_fits_into_memory_and_uses_most_of_it(arguments, key):
    room = replace(PLENTY, memory=6 * 10**9)
    line = rejection(room, *arguments)
    assert line.startswith("this run needs ")
    assert "and 6.0 GB is free" in line
    run_plan, sizes = sizes_of(*arguments, proposed_override(line, key))
    refuse(run_plan, sizes, room)
    assert sizes.memory > 0.8 * room.memory


def test_advice_is_not_to_save_tables_if_saving_does_not_fit():
    room = replace(PLENTY, memory=1_500_000_000)
    arguments = ["dqn-minatar-breakout", "algo.capacity=2000000", "stop.env_steps=5000000"]
    line = rejection(room, *arguments)
    assert line.endswith("or set checkpoint.replay=false")
    refuse(*sizes_of(*arguments, "checkpoint.replay=false"), room)


def test_machine_too_small_for_any_setting_is_a_clear_error():
    assert "use a smaller network (net) or a larger machine" in rejection(replace(PLENTY, memory=10**6), "ppo-cartpole")


def test_proposed_number_of_checkpoints_fits_on_the_disk():
    room = replace(PLENTY, disk=330_000_000)  # five checkpoints of 89 MB do not fit
    line = rejection(room, "dqn-minatar-breakout")
    assert "for 5 checkpoints" in line
    assert "lower checkpoint.keep from 3 to 1" in line
    refuse(*sizes_of("dqn-minatar-breakout", "checkpoint.keep=1"), room)


def test_advice_is_not_to_save_tables_if_no_checkpoint_fits():
    room = replace(PLENTY, disk=100_000_000)
    assert rejection(room, "dqn-minatar-breakout").endswith("--runs, or set checkpoint.replay=false")
    refuse(*sizes_of("dqn-minatar-breakout", "checkpoint.replay=false"), room)


def costs(env_step, inference, training, cores=2):
    return Costs(*(Cost(value, value, value) for value in (env_step, inference, training)), cores=cores, peak=0)


@pytest.mark.parametrize(
    ("settings", "measured", "speed"),
    [
        (["runtime=inline"], costs(1, 2, 5), 1 / 8),
        (["runtime=processes", "actors=1"], costs(1, 2, 5), 1 / 5),  # the learner's core is always busy
        (["runtime=processes", "actors=1"], costs(3, 4, 5), 1 / 7),  # the actor's core
        (["runtime=processes", "actors=4"], costs(3, 4, 5), 2 / 12),  # all cores
        (["runtime=processes", "actors=4"], costs(3, 4, 5, cores=8), 1 / 5),
    ],
)
def test_predicted_speed_is_that_of_the_bottleneck(settings, measured, speed):
    assert predict_speed(RunPlan.from_config(load("ppo-cartpole", settings)), measured) == pytest.approx(speed)


def test_limit_is_the_speed_with_all_cores_fully_used():
    assert costs(1, 2, 5, cores=4).limit == 0.5


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0.0 kB"), (1_500, "1.5 kB"), (123_456_789, "123 MB"), (2e13, "20.0 TB")]
)
def test_sizes_are_formatted_with_units(size, words):
    assert in_words(size) == words
