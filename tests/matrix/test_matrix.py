"""The proof of the claim: the same agent, unchanged, learns under every topology.

`make test` covers every pair of choices, `make matrix` (STARLING_MATRIX=whole) every combination.
"""

import itertools
import os
import time

import pytest

from starling.blueprint import draw
from starling.config.algo import ALGORITHMS
from starling.config.load import load
from starling.runs.metrics import Scoreboard
from starling.topology import build

SMALL = ["env.id=toy/identity", "env.num=8", "net.torso.activation=tanh", "net.torso.hidden=[32]", "stop.return=null"]
LSTM = ["net.core={kind: lstm, size: 16}", "net.shared=true"]
DQN = ["algo.learning_starts=200", "algo.fragment=4", "algo.updates_per_step=0.25", "algo.optimizer.args.lr=0.003"]
PPO = ["algo.rollout=32", "algo.epochs=6", "algo.minibatches=4", "algo.optimizer.args.lr=0.005", "algo.discount=0.5"]
IMPALA = ["algo.batch=4", "algo.unroll=16", "algo.optimizer.args.lr=0.01", "algo.discount=0.5"]
R2D2 = [
    *["env.args={}", "algo.burn_in=4", "algo.unroll=8", "algo.period=4", "algo.fragment=4", "algo.learning_starts=100"],
    *["algo.updates_per_step=0.125", "algo.optimizer.args.lr=0.003", "algo.discount=0.5", "algo.epsilon=0.1"],
]

AGENTS = {
    "apex": ("dqn-cartpole", [*DQN, "algo.name=apex"]),
    "dqn": ("dqn-cartpole", DQN),
    "dqn prioritized": ("dqn-cartpole", [*DQN, "algo.prioritized.alpha=0.6", "algo.n_step=3", "algo.dueling=true"]),
    "ppo": ("ppo-cartpole", PPO),
    "ppo lstm": ("ppo-cartpole", [*PPO, *LSTM]),
    "ppo asynchronous": ("ppo-cartpole", [*PPO, "algo.max_lag=1"]),
    "impala": ("impala-cartpole", IMPALA),
    "impala lstm": ("impala-cartpole", [*IMPALA, *LSTM]),
    "r2d2": ("r2d2-memory", [*R2D2, *LSTM]),
    "r2d2 retrace": ("r2d2-memory", [*R2D2, "algo.retrace=0.95", "net.core={kind: gru, size: 16}"]),
}
"""Of every algorithm: a preset and what makes it solve toy/identity within a few thousand steps."""

AXES = {
    "agent": list(AGENTS),
    "runtime": ["inline", "processes", "ray"],
    "inference": ["local", "central"],
    "actors": [1, 2],
}
STEPS = 16_000


def pairwise(axes: list[list]) -> list[tuple]:
    """Combinations in which every pair of choices of two axes occurs, greedily few."""

    def pairs(row: tuple) -> set:
        return set(itertools.combinations(enumerate(row), 2))

    rows = list(itertools.product(*axes))
    missing, chosen = set().union(*map(pairs, rows)), []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


whole = os.environ.get("STARLING_MATRIX") == "whole"
ROWS = list(itertools.product(*AXES.values())) if whole else pairwise(list(AXES.values()))


def test_every_algorithm_is_in_the_matrix():
    built_in = {name for name, entry in ALGORITHMS if str(entry.target).startswith("starling.")}
    assert {agent.split()[0] for agent in AGENTS} == built_in


def test_every_pair_is_covered():
    for (i, first), (j, second) in itertools.combinations(enumerate(AXES.values()), 2):
        for a, b in itertools.product(first, second):
            assert any(row[i] == a and row[j] == b for row in ROWS)


@pytest.mark.parametrize(("agent", "runtime", "inference", "actors"), ROWS)
def test_the_agent_learns_identity(agent, runtime, inference, actors, request):
    """16 rounds of one in four: 4 by chance, 16 at best."""
    if runtime == "ray":
        request.getfixturevalue("ray_here")
    preset, settings = AGENTS[agent]
    topology = [f"runtime={runtime}", f"inference={inference}", f"actors={actors}", f"stop.env_steps={STEPS}"]
    system = build(draw(load(preset, [*SMALL, *settings, *topology])))
    scores, end = Scoreboard(window=50), time.monotonic() + 120
    try:
        for _ in system.run():
            scores.add(system.episodes())
            assert not system.notices()
            if (scores.full and scores.mean > 14) or system.env_steps >= STEPS or time.monotonic() > end:
                break
    finally:
        system.close()
    assert scores.mean > 14, f"after {system.env_steps} env steps and {system.updates} updates"
