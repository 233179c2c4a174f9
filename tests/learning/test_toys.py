"""Problems that only a correct implementation solves; seeds are fixed, thresholds stated."""

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
    """An inline run after `steps` env steps or once its score exceeds `enough`, and the score of its last episodes."""
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
    """16 rounds with four actions: 4 by chance, 16 at best. tests/matrix shows that the other agents learn it."""
    _, score = train("sac-pendulum", "toy/identity", 6_000, [*SAC, *COOLING, "algo.target_entropy=0.2"], enough=14)
    assert score > 14


CONTINUOUS = {
    "sac": ("sac-pendulum", [*SAC, *COOLING, "algo.target_entropy=-4"]),
    "ppo": ("ppo-cartpole", [*GAUSSIAN, "algo.normalize_rewards=true"]),
}


def test_sac_with_n_step_returns_learns_toy_match():
    """16 rounds: 5.3 by chance, 16 at best, with a policy that explores. tests/matrix has one-step returns."""
    preset, overrides = CONTINUOUS["sac"]
    _, score = train(preset, "toy/match", 8_000, [*overrides, "algo.n_step=3"], enough=13.5)
    assert score > 13.5


@pytest.mark.parametrize(("agent", "leaf"), [("sac", "image"), ("ppo", "vector")])
def test_dict_observation_with_the_answer_in_one_leaf_is_learned(agent, leaf):
    """8 rounds: at most 4 without that leaf, 8 at best."""
    preset, overrides = CONTINUOUS[agent]
    image_torso = ["net.torso={kind: cnn, channels: [8], kernels: [4], strides: [4], hidden: [32], activation: tanh}"]
    env_args = f"env.args={{answer: {leaf}, continuous: true}}"
    _, score = train(preset, "toy/dict", 8_000, [*overrides, *image_torso, env_args], enough=6)
    assert score > 6


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [("ppo-cartpole", [*PPO, "algo.gae_lambda=0.95"]), ("impala-cartpole", [*IMPALA, "algo.trace_lambda=0.95"])],
)
def test_memory_is_solved_with_a_core_and_not_without(preset, overrides):
    """A return of 1 needs the cue; without memory the mean return is 0, whatever is learned."""
    settings = [*overrides, "algo.discount=0.95", "net.shared=true"]
    core = "net.core={kind: lstm, size: 32}"
    _, with_memory = train(preset, "toy/memory", 25_000, [*settings, core], enough=0.9)
    _, without = train(preset, "toy/memory", 10_000, settings)
    assert with_memory > 0.9
    assert abs(without) < 0.5


VALUES = {"truncated": 10.0, "terminated": 1 / (1 - 0.9 * 7 / 8)}
"""Values of toy/truncation at discount 0.9: a truncated episode is bootstrapped, a terminated one is not (4.7)."""


@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("lambda_", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_ppo_bootstraps_at_truncation_and_not_at_termination(ends, lambda_):
    settings = [*PPO, "algo.discount=0.9", f"algo.gae_lambda={lambda_}", f"env.args={{ends: {ends}}}"]
    runtime, _ = train("ppo-cartpole", "toy/truncation", 15_000, [*settings, "algo.rollout=64"])
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(VALUES[ends], rel=0.1)


@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("lambda_", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_impala_bootstraps_at_truncation_and_not_at_termination(ends, lambda_):
    settings = [*IMPALA, "algo.discount=0.9", f"algo.trace_lambda={lambda_}", f"env.args={{ends: {ends}}}"]
    runtime, _ = train("impala-cartpole", "toy/truncation", 15_000, settings)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    assert outputs["extrinsic"].item() == pytest.approx(VALUES[ends], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("ends", VALUES)
@pytest.mark.parametrize("n_step", [1, 5])
def test_dqn_bootstraps_at_truncation_and_not_at_termination(ends, n_step):
    settings = [
        *DQN,
        "algo.discount=0.9",
        f"algo.n_step={n_step}",
        f"env.args={{ends: {ends}}}",
        "algo.target_every=10",
        "algo.huber=100",  # only a squared error learns the mean; the linear part of Huber's tends to the median
    ]
    runtime, _ = train("dqn-cartpole", "toy/truncation", 5_000, settings)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    np.testing.assert_allclose(outputs["extrinsic"].detach().numpy(), VALUES[ends], rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "n_step", "continuous"),
    [("truncated", 1, False), ("truncated", 5, True), ("terminated", 1, True), ("terminated", 5, False)],
)
def test_sac_learns_soft_values_and_bootstraps_at_truncation(ends, n_step, continuous):
    """Actions have no effect, so the best policy has the largest entropy, log 2 for both action spaces, and alpha stays
    0.5.

    The soft value is then 1 + alpha log 2 per step while the episode lasts, and Q is 1 + the discounted next value.
    """
    settings = ["algo.discount=0.9", "algo.temperature=0.5", "algo.temperature_optimizer={name: SGD, args: {lr: 0}}"]
    env = f"env.args={{ends: {ends}, continuous: {continuous}}}"
    runtime, _ = train("sac-pendulum", "toy/truncation", 6_000, [*SAC, *settings, env, f"algo.n_step={n_step}"])
    continues = 1.0 if ends == "truncated" else 7 / 8
    expected = 1.0 + 0.9 * continues * (1 + 0.5 * np.log(2)) / (1 - 0.9 * continues)
    outputs, _ = runtime.learner.model.step(torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})
    np.testing.assert_allclose(outputs["q"].detach().numpy(), expected, rtol=0.1)
