"""The same agent, unchanged, learns under every topology.

`make test` covers every pair of choices, and Ray with one agent of each kind; `make matrix` (STARLING_MATRIX=whole)
covers every combination and variants of agents.
"""

import itertools
import os
import time

import pytest

from starling.config.algorithms import ALGORITHMS
from starling.config.load import load
from starling.experiment.run_folder.metrics import Scoreboard
from starling.launch.build import build_runtime
from starling.launch.plan import RunPlan

SMALL = ["env.id=toy/identity", "env.num=8", "net.torso.activation=tanh", "net.torso.hidden=[32]", "stop.return=null"]
LSTM = ["net.core={kind: lstm, size: 16}", "net.shared=true"]
DQN = ["algo.learning_starts=200", "algo.fragment=4", "algo.updates_per_step=0.25", "algo.optimizer.args.lr=0.003"]
PPO = ["algo.rollout=32", "algo.epochs=6", "algo.minibatches=4", "algo.optimizer.args.lr=0.005", "algo.discount=0.5"]
PQN = ["algo.rollout=32", "algo.minibatches=8", "algo.optimizer.args.lr=0.005", "algo.discount=0.5"]
IMPALA = ["algo.batch=4", "algo.unroll=16", "algo.optimizer.args.lr=0.01", "algo.discount=0.5"]
MIXED = [*IMPALA, "algo.batch=8"]  # half of the batch is new
RANKED = "{kind: elite, share: 0.25, capacity: 60, selection: grouped, contest: 5}"
IMPACT = [
    "algo.batch=4",
    "algo.unroll=16",
    "algo.optimizer.args.lr=0.01",
    "algo.discount=0.5",
    "algo.entropy_coef=0.01",
]
RND = "{kind: rnd, weight: 0.05, torso: {hidden: [8]}}"
ICM = "{kind: icm, weight: 0.05, hidden: 8, torso: {hidden: [8]}}"
EPISODIC = "{kind: episodic, weight: 0.05, features: 4, capacity: 16, neighbours: 3, hidden: 8, torso: {hidden: [8]}}"
R2D2 = [
    *["env.args={}", "algo.burn_in=4", "algo.unroll=8", "algo.period=4", "algo.fragment=4", "algo.learning_starts=100"],
    *["algo.updates_per_step=0.125", "algo.optimizer.args.lr=0.003", "algo.discount=0.5", "algo.epsilon=0.1"],
]
NGU = [
    *["algo.name=ngu", "algo.policies=2", "algo.novelty=0.01", "algo.min_discount=0.4", "algo.meta={}"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.target_every=50"],
    "algo.episodic={kind: episodic, features: 4, capacity: 16, neighbours: 3, hidden: 8, torso: {hidden: [8]}}",
]
SAC = [
    *["algo.learning_starts=256", "algo.batch=64", "algo.fragment=4", "algo.updates_per_step=0.25", "algo.tau=0.05"],
    *["algo.discount=0.5", "algo.actor_optimizer.args.lr=0.003", "algo.critic_optimizer.args.lr=0.003"],
    *["algo.temperature=0.1", "algo.temperature_optimizer.args.lr=0.01"],
]
GAUSSIAN = ["env.id=toy/match", "algo.policy=gaussian", "algo.log_std=-1", "algo.normalize_observations=true"]

AGENTS = {
    "apex": ("dqn-cartpole", [*DQN, "algo.name=apex"]),
    "dqn": ("dqn-cartpole", DQN),
    "dqn prioritized": ("dqn-cartpole", [*DQN, "algo.prioritized.alpha=0.6", "algo.n_step=3", "algo.dueling=true"]),
    "dqn curious": ("dqn-cartpole", [*DQN, f"curiosity=[{EPISODIC}]"]),
    "ngu": ("r2d2-memory", [*R2D2, *LSTM, *NGU]),
    "ppo": ("ppo-cartpole", PPO),
    "ppo curious": ("ppo-cartpole", [*PPO, f"curiosity=[{RND}, {ICM}]"]),
    "ppo lstm": ("ppo-cartpole", [*PPO, *LSTM]),
    "ppo asynchronous": ("ppo-cartpole", [*PPO, "algo.max_lag=1"]),
    "impala": ("impala-cartpole", IMPALA),
    "ppo gaussian": ("ppo-cartpole", [*PPO, *GAUSSIAN, "algo.normalize_rewards=true"]),
    "sac": ("sac-pendulum", [*SAC, "env.id=toy/match", "algo.target_entropy=-4"]),
    "impala clear": ("impala-clear-cartpole", MIXED),
    "impala attentive": ("impala-attentive-cartpole", MIXED),
    "impala elite lstm": (
        "impala-elite-cartpole",
        [*MIXED, *LSTM, f"algo.sources=[{{kind: queue, share: 0.5}}, {{kind: prioritized, share: 0.25}}, {RANKED}]"],
    ),
    "impact": ("impact-cartpole", IMPACT),
    "pqn": ("pqn-cartpole", PQN),
    "r2d2": ("r2d2-memory", [*R2D2, *LSTM]),
}
"""For each algorithm: a preset, and settings with which it solves a toy problem within a few thousand steps."""

VARIANTS = {
    "impala lstm": ("impala-cartpole", [*IMPALA, *LSTM]),
    "sac discrete": ("sac-pendulum", [*SAC, "algo.target_entropy=0.2"]),
    "sac prioritized": ("sac-pendulum", [*SAC, "env.id=toy/match", "algo.n_step=3", "algo.prioritized.alpha=0.6"]),
    "impala laser": ("impala-laser-cartpole", [*IMPALA, "algo.batch=32"]),
    "r2d2 retrace": ("r2d2-memory", [*R2D2, "algo.retrace=0.95", "net.core={kind: gru, size: 16}"]),
}
"""Agents with the data flow of another one: they differ only in loss or network, which the runtimes do not see."""

ON_RAY = ["apex", "dqn", "ngu", "ppo", "impala", "sac", "impala elite lstm", "impact", "r2d2"]
"""One agent of each kind; Ray distributes the parts of any agent in the same way."""

RUNTIMES = {
    "inline": ["runtime=inline"],
    "processes": ["runtime=processes"],
    "two learners": ["runtime=processes", "learners=2"],
    "ray": ["runtime=ray"],
}
whole = os.environ.get("STARLING_MATRIX") == "whole"
if whole:
    AGENTS |= VARIANTS
    RUNTIMES["ray, two learners"] = ["runtime=ray", "learners=2"]
AXES = {
    "agent": list(AGENTS),
    "runtime": list(RUNTIMES),
    "inference": ["local", "central"],
    "actors": [1, 2],  # per learner
}
STEPS = 16_000


def pairs(row: tuple) -> set:
    return set(itertools.combinations(enumerate(row), 2))


def covering_rows(rows: list[tuple]) -> list[tuple]:
    """A small subset of the rows, chosen greedily, that contains every pair of choices in any row."""
    missing, chosen = set().union(*map(pairs, rows)), []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def marks(runtime: str) -> list:
    """The quick tests run every agent in one process; `tests/runtime` covers what several processes add."""
    return [pytest.mark.ray] if "ray" in runtime else [pytest.mark.slow] if runtime != "inline" else []


COMBINATIONS = [row for row in itertools.product(*AXES.values()) if whole or row[1] != "ray" or row[0] in ON_RAY]
ROWS = COMBINATIONS if whole else covering_rows(COMBINATIONS)


def test_every_algorithm_is_in_the_matrix():
    built_in = {name for name, entry in ALGORITHMS if str(entry.target).startswith("starling.")}
    assert {agent.split()[0] for agent in AGENTS} == built_in


def test_every_pair_of_choices_is_covered():
    assert set().union(*map(pairs, ROWS)) == set().union(*map(pairs, COMBINATIONS))
    for choices, axis in zip(zip(*COMBINATIONS, strict=True), AXES.values(), strict=True):
        assert set(choices) == set(axis)


@pytest.mark.parametrize(
    ("agent", "runtime", "inference", "actors"),
    [pytest.param(*row, marks=marks(row[1])) for row in ROWS],
)
def test_agent_learns_its_toy_problem(agent, runtime, inference, actors, request):
    """16 rounds with four actions: 4 by chance, 16 at best; 5.3 by chance in toy/match."""
    if "ray" in runtime:
        request.getfixturevalue("local_ray")
    preset, settings = AGENTS[agent]
    actors *= 1 + ("two learners" in runtime)
    topology = [*RUNTIMES[runtime], f"inference={inference}", f"actors={actors}", f"stop.env_steps={STEPS}"]
    system = build_runtime(RunPlan.from_config(load(preset, [*SMALL, *settings, *topology])))
    scores, end = Scoreboard(window=50), time.monotonic() + 480
    try:
        for _ in system.run():
            scores.add(system.episodes())
            assert not system.notices()
            if (scores.full and scores.mean > 14) or system.env_steps >= STEPS or time.monotonic() > end:
                break
    finally:
        system.close()
    assert scores.mean > 14, f"after {system.env_steps} env steps and {system.updates} updates"
