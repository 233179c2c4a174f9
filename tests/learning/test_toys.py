"""Problems that only a correct implementation solves; seeds are fixed, margins stated."""

import numpy as np
import pytest
import torch

from starling.config.load import load
from starling.experiment.run_folder.metrics import Scoreboard
from starling.launch.plan import RunPlan
from starling.launch.runtime import build_runtime

SMALL = ["net.torso.hidden=[32]", "net.torso.activation=tanh", "stop.return=null"]
PPO = [*SMALL, "env.num=8", "algo.rollout=32", "algo.epochs=6", "algo.minibatches=4", "algo.optimizer.args.lr=0.005"]
IMPALA = [*SMALL, "env.num=8", "algo.batch=4", "algo.unroll=16", "algo.optimizer.args.lr=0.01"]
DQN = [*SMALL, "env.num=4", "algo.learning_starts=200", "algo.fragment=8", "algo.optimizer.args.lr=0.003"]

SAC = [
    *[
        *SMALL,
        "env.num=4",
        "algo.learning_starts=256",
        "algo.batch=64",
        "algo.fragment=4",
        "algo.updates_per_step=0.25",
    ],
    *["algo.tau=0.05", "algo.actor_optimizer.args.lr=0.003", "algo.critic_optimizer.args.lr=0.003"],
]
COOLING = ["algo.discount=0.5", "algo.temperature=0.1", "algo.temperature_optimizer.args.lr=0.01"]
GAUSSIAN = [*PPO, "algo.policy=gaussian", "algo.log_std=-1", "algo.discount=0.5", "algo.normalize_observations=true"]


def train(preset, env, steps, overrides, enough=np.inf):
    """An inline system after `steps` env steps, or once its score is `enough`; and the score of its last episodes."""
    config = load(preset, [*overrides, f"env.id={env}", f"stop.env_steps={steps}"])
    runtime = build_runtime(RunPlan.from_config(config))
    scores = Scoreboard(window=50)
    for _ in runtime.run():
        scores.add(runtime.episodes())
        if runtime.env_steps >= steps or (scores.full and scores.mean > enough):
            runtime.close()
            return runtime, scores.mean
    raise AssertionError


def test_sac_learns_identity_with_discrete_actions():
    """16 rounds of one in four: 4 by chance, 16 at best. That other agents learn it shows the matrix."""
    _, score = train("sac-pendulum", "toy/identity", 6_000, [*SAC, *COOLING, "algo.target_entropy=0.2"], enough=14)
    assert score > 14


CONTINUOUS = {
    "sac": ("sac-pendulum", [*SAC, *COOLING, "algo.target_entropy=-4"]),
    "ppo": ("ppo-cartpole", [*GAUSSIAN, "algo.normalize_rewards=true"]),
}


def test_sac_finds_the_place_that_is_named_between_uneven_bounds_by_several_steps():
    """16 rounds: 5.3 by chance, 16 at best, of a policy that explores. Single steps are in the matrix."""
    preset, overrides = CONTINUOUS["sac"]
    _, score = train(preset, "toy/match", 8_000, [*overrides, "algo.n_step=3"], enough=13.5)
    assert score > 13.5


@pytest.mark.parametrize(("agent", "leaf"), [("sac", "image"), ("ppo", "vector")])
def test_a_dict_of_vectors_and_images_is_read_where_the_answer_is(agent, leaf):
    """8 rounds: at most 4 without the leaf, 8 at best."""
    preset, overrides = CONTINUOUS[agent]
    picture = ["net.torso={kind: cnn, channels: [8], kernels: [4], strides: [4], hidden: [32], activation: tanh}"]
    where = f"env.args={{answer: {leaf}, continuous: true}}"
    _, score = train(preset, "toy/dict", 8_000, [*overrides, *picture, where], enough=6)
    assert score > 6


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [("ppo-cartpole", [*PPO, "algo.gae_lambda=0.95"]), ("impala-cartpole", [*IMPALA, "algo.trace_lambda=0.95"])],
)
def test_memory_is_solved_with_a_core_and_not_without(preset, overrides):
    """Return 1 needs the cue; without memory the mean is 0, whatever is learned."""
    settings = [*overrides, "algo.discount=0.95", "net.shared=true"]
    core = "net.core={kind: lstm, size: 32}"
    _, with_memory = train(preset, "toy/memory", 25_000, [*settings, core], enough=0.9)
    _, without = train(preset, "toy/memory", 10_000, settings)
    assert with_memory > 0.9
    assert abs(without) < 0.5


VALUES = {"truncated": 10.0, "terminated": 1 / (1 - 0.9 * 7 / 8)}
"""Of toy/truncation at discount 0.9: a cut episode goes on in the value, an ended one does not (4.7)."""


@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("lambda_", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_ppo_values_a_truncation_as_a_future_and_a_termination_as_none(ends, lambda_):
    settings = [*PPO, "algo.discount=0.9", f"algo.gae_lambda={lambda_}", f"env.args={{ends: {ends}}}"]
    runtime, _ = train("ppo-cartpole", "toy/truncation", 15_000, [*settings, "algo.rollout=64"])
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(VALUES[ends], rel=0.1)


@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("lambda_", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_impala_values_a_truncation_as_a_future_and_a_termination_as_none(ends, lambda_):
    settings = [*IMPALA, "algo.discount=0.9", f"algo.trace_lambda={lambda_}", f"env.args={{ends: {ends}}}"]
    runtime, _ = train("impala-cartpole", "toy/truncation", 15_000, settings)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(VALUES[ends], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("n_step", [1, 5])
def test_dqn_values_a_truncation_as_a_future_and_a_termination_as_none(ends, n_step):
    settings = [
        *DQN,
        "algo.discount=0.9",
        f"algo.n_step={n_step}",
        f"env.args={{ends: {ends}}}",
        "algo.target_every=10",
        "algo.huber=100",  # a mean is only learned by a squared error; Huber's own limit tends to the median
    ]
    runtime, _ = train("dqn-cartpole", "toy/truncation", 5_000, settings)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    np.testing.assert_allclose(outputs["extrinsic"].detach().numpy(), VALUES[ends], rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "n_step", "continuous"),
    [("truncated", 1, False), ("truncated", 5, True), ("terminated", 1, True), ("terminated", 5, False)],
)
def test_sac_values_what_comes_and_how_freely_it_may_act(ends, n_step, continuous):
    """Nothing depends on actions, so the policy is as random as can be, log 2 in both forms, and alpha stays 0.5.

    A soft value is then 1 + alpha log 2 at every step for as long as an episode lasts, and Q is 1 + what follows.
    """
    settings = ["algo.discount=0.9", "algo.temperature=0.5", "algo.temperature_optimizer={name: SGD, args: {lr: 0}}"]
    env = f"env.args={{ends: {ends}, continuous: {continuous}}}"
    runtime, _ = train("sac-pendulum", "toy/truncation", 6_000, [*SAC, *settings, env, f"algo.n_step={n_step}"])
    lasts = 1.0 if ends == "truncated" else 7 / 8
    expected = 1.0 + 0.9 * lasts * (1 + 0.5 * np.log(2)) / (1 - 0.9 * lasts)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    np.testing.assert_allclose(outputs["q"].detach().numpy(), expected, rtol=0.1)
